"""The index of stored trees: a small row for each tree, for readers that need a few figures of every tree.

The index of the shards of a name is ``<name>.index.jsonl`` in the same folder, with one JSON line for each shard. The
shards decide: an entry is valid only while its shard has the size and the checksum that the entry names, and a shard
without a valid entry is read instead. So the index may be deleted at any time, and a line that a kill has cut off is no
error.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from treeagent.search.node import Budget, Tree, accuracy, finished_paths, path_return, return_spread, sees_rewards
from treeagent.search.record import Record, from_record, storable_trees
from treeagent.store import append_line, read_as, regular, shard_place, shard_seal, shards, write_shard


@dataclass(frozen=True, slots=True)
class TreeRow:
    """The index row of a tree."""

    task: str
    """The task's id."""
    place: int | None
    """``Tree.place``."""
    policy: str
    """``Tree.policy``."""
    nodes: int
    spread: float
    """``return_spread`` of the tree."""
    accuracy: float
    """``accuracy`` of the tree: above 0 if it holds a success."""
    best: float | None
    """The highest discounted return of a finished path; None if no path is finished."""
    told: bool
    """Whether the search saw a reward; False at evaluation, where rewards are withheld."""
    failed: bool
    """Whether the search of the tree ended with an error."""

    @classmethod
    def of(cls, tree: Tree) -> "TreeRow":
        """The row of a tree."""
        return cls(
            tree.task.id,
            tree.place,
            tree.policy,
            sum(1 for _ in tree.nodes()),
            return_spread(tree),
            accuracy(tree),
            max((path_return(path, tree.discount) for path in finished_paths(tree)), default=None),
            sees_rewards(tree),
            bool(tree.error),
        )


@dataclass(frozen=True, slots=True)
class ShardRows:
    """The index entry of a shard."""

    index: int
    """The shard's number."""
    seal: str
    """``shard_seal`` of the file."""
    budget: Budget
    """The cost of all its trees together."""
    trees: tuple[TreeRow, ...]
    """Rows of its trees, in the order of the shard."""

    @classmethod
    def of(cls, path: Path, trees: Iterable[Tree]) -> "ShardRows":
        """The rows of the shard ``path``, which holds ``trees``."""
        budget, rows = Budget(), list[TreeRow]()
        for tree in trees:
            budget.add(tree.budget)
            rows.append(TreeRow.of(tree))
        return cls(shard_place(path)[1], shard_seal(path), budget, tuple(rows))


def index_path(folder: Path, name: str) -> Path:
    """The path of the index of the shards of ``name``."""
    return folder / f"{name}.index.jsonl"


def write_trees(folder: Path, name: str, index: int, trees: Iterable[Tree]) -> ShardRows:
    """Write trees as one shard. Returns its index entry, for ``append``. A worker sends the entry to the run's single
    writer, which alone appends to the index.

    Raises:
        StoreError: the file cannot be written.
    """
    written = list[Tree]()

    def records() -> Iterator[Record]:
        for tree, record in storable_trees(trees):
            written.append(tree)
            yield record

    return ShardRows.of(write_shard(folder, name, index, records()), written)


def append(folder: Path, name: str, rows: ShardRows) -> None:
    """Add the entry of a shard to the index. Only the run's single writer may call this.

    Raises:
        StoreError: the file cannot be written.
    """
    append_line(index_path(folder, name), rows)


def shard_rows(folder: Path, name: str, *, keep: bool = False) -> Iterator[ShardRows]:
    """Yield the entry of every finished shard of ``name``, in order: from the index, or by reading the shard if the
    index has no valid entry for it.

    Args:
        keep: whether to add missing entries to the index. Only the run's single writer may do so.

    Raises:
        CorruptShard: a shard that had to be read is damaged.
    """
    path = index_path(folder, name)
    positions = _entry_positions(path)
    for shard in shards(folder, name):
        index = shard_place(shard)[1]
        seal, at = positions.get(index, ("", 0))
        found = _entry(path, at) if seal == shard_seal(shard) else None
        if found is None:
            found = ShardRows.of(shard, read_as(from_record, folder, name, index))
            if keep:
                append(folder, name, found)
        yield found


def index_entries(folder: Path, name: str) -> dict[int, ShardRows]:
    """The index entries of the shards of ``name``, keyed by their number, whether or not they are still valid."""
    path = index_path(folder, name)
    entries = {index: _entry(path, at) for index, (_, at) in _entry_positions(path).items()}
    return {index: entry for index, entry in entries.items() if entry is not None}


def tree_rows(folder: Path, name: str) -> Iterator[TreeRow]:
    """The rows of all trees in the shards of ``name``, in order (``shard_rows``)."""
    return (row for shard in shard_rows(folder, name) for row in shard.trees)


def _entry_positions(path: Path) -> dict[int, tuple[str, int]]:
    """The seal in the last entry of each shard, and the offset of the entry's line in the file."""
    positions: dict[int, tuple[str, int]] = {}
    if not path.exists():
        return positions
    at = 0
    with regular(path).open("rb") as file:
        for line in file:
            with suppress(ValueError, TypeError, KeyError):  # a line that was cut off by a kill
                entry = orjson.loads(line)
                positions[entry["index"]] = (entry["seal"], at)
            at += len(line)
    return positions


def _entry(path: Path, at: int) -> ShardRows | None:
    """The entry on the line that begins at offset ``at``; None if another version of treeagent wrote it."""
    with path.open("rb") as file:
        file.seek(at)
        entry = orjson.loads(file.readline())
    try:
        rows = tuple(TreeRow(**row) for row in entry["trees"])
        return ShardRows(entry["index"], entry["seal"], Budget(**entry["budget"]), rows)
    except (TypeError, KeyError):
        return None

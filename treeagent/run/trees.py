"""Read the searched training trees of a run from its shards, with the marks of reviewers applied."""

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treeagent.marks import FILE, Mark, deciding, read_marks
from treeagent.run.folder import COLLECTED
from treeagent.run.index import shard_rows, tree_rows
from treeagent.search.node import Tree
from treeagent.search.record import from_record
from treeagent.store import read_as, read_line
from treeagent.types import UserError
from treeagent.views.marked import apply_marks


def run_marks(folder: Path) -> list[Mark]:
    """All marks of the run that contains ``folder``, its folder of trees or episodes.

    Raises:
        StoreError: the file of marks is damaged.
    """
    return read_marks(folder.parent / FILE)


def marked_trees(
    folder: Path,
    name: str | None = None,
    index: int | None = None,
    marks: Sequence[Mark] | None = None,
    process_weight: float = 0.0,
) -> Iterator[Tree]:
    """Yield the trees of shards, with those of the ``marks`` applied that are in force (``deciding``); by default the
    marks of the run.

    Args:
        process_weight: ``search.process_weight`` of the search that grew the trees.

    Raises:
        CorruptShard, StoreError: a shard or the file of marks is damaged.
    """
    states = deciding(run_marks(folder) if marks is None else marks)
    tasks = {mark.task_id for found in states.values() for mark in found}
    for tree in read_as(from_record, folder, name, index):
        yield apply_marks(tree, states, process_weight) if tree.task.id in tasks else tree


def read_trees(
    folder: Path, names: Sequence[str] = (COLLECTED,), marks: Sequence[Mark] | None = None
) -> Iterator[Tree]:
    """Yield the searched training trees of the shards with these names, with marks applied as in ``marked_trees``. Only
    one tree is in memory at a time.

    Raises:
        UserError: a tree was collected or imported by text alone.
    """
    return (_learnable(tree, folder) for name in names for tree in marked_trees(folder, name, marks=marks))


def trees_by_task(
    folder: Path, names: Sequence[str], marks: Sequence[Mark] | None = None, process_weight: float = 0.0
) -> Iterator[tuple[Sequence[int], list[Tree]]]:
    """Yield the trees of ``read_trees`` grouped by task, with their indices in the order of ``read_trees``. Tasks come
    in the order of their first tree. Only the trees of one task are in memory at a time.

    Args:
        process_weight: ``search.process_weight`` of the search that grew the trees.

    Raises:
        UserError: as ``read_trees``.
    """
    states = deciding(run_marks(folder) if marks is None else marks)
    repeated = _repeated(folder, names)
    places = _places(folder, names, repeated)

    def read(record: Mapping[str, Any]) -> Tree:
        tree = from_record(record)
        return _learnable(apply_marks(tree, states, process_weight) if states else tree, folder)

    first = 0
    for name in names:
        for rows in shard_rows(folder, name):
            at = iter(range(first, first + len(rows.trees)))
            first += len(rows.trees)

            def unless_read(record: Mapping[str, Any], at: Iterator[int] = at) -> tuple[int, Tree] | None:
                place = next(at)
                found = places.get(record["task"]["id"]) if repeated else None
                return (place, read(record)) if found is None or found[0].place == place else None

            for numbered in read_as(unless_read, folder, name, rows.index):
                if numbered is None:
                    continue
                place, tree = numbered
                later = places.get(tree.task.id, ())[1:]
                others = [read(read_line(folder, each.name, each.index, each.line)) for each in later]
                for group in _by_task([(place, tree), *zip((each.place for each in later), others, strict=True)]):
                    yield [place for place, _ in group], [tree for _, tree in group]


def _by_task(found: Sequence[tuple[int, Tree]]) -> list[list[tuple[int, Tree]]]:
    """Group trees whose tasks have equal ids by task, in order. The stages of a curriculum may give one id to tasks
    that differ in their seed or data."""
    groups: list[list[tuple[int, Tree]]] = []
    for place, tree in found:
        for group in groups:
            task = group[0][1].task
            if (task.seed, task.data) == (tree.task.seed, tree.task.data):
                group.append((place, tree))
                break
        else:
            groups.append([(place, tree)])
    return groups


@dataclass(frozen=True, slots=True)
class _Place:
    """The location of a stored tree."""

    place: int
    """Index among all trees that are read."""
    name: str
    index: int
    """Number of the shard."""
    line: int
    """Line in the shard, from 0."""


def _repeated(folder: Path, names: Sequence[str]) -> set[int]:
    """Hashes of the ids of tasks with several trees. They take 8 bytes of memory per tree."""
    hashes = array("q", (hash(row.task) for name in names for row in tree_rows(folder, name)))
    found, counts = np.unique(np.frombuffer(hashes, dtype=np.int64), return_counts=True)
    return set(found[counts > 1].tolist())


def _places(folder: Path, names: Sequence[str], repeated: Collection[int]) -> dict[str, list[_Place]]:
    """The locations of the trees of each task with several trees, keyed by the task's id. On a collision of hashes, a
    task with a single tree may be among them."""
    places: dict[str, list[_Place]] = {}
    first = 0
    for name in names if repeated else ():
        for rows in shard_rows(folder, name):
            for line, row in enumerate(rows.trees):
                if hash(row.task) in repeated:
                    places.setdefault(row.task, []).append(_Place(first + line, name, rows.index, line))
            first += len(rows.trees)
    return places


def _learnable(tree: Tree, folder: Path) -> Tree:
    if tree.text_only:
        raise UserError(
            f"the tree of task {tree.task.id} in {folder} holds actions without token ids, and cannot be learned from: "
            "collect with a server that gives token ids, or import transcripts with --checkpoint"
        )
    return tree

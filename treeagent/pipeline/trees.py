"""Write and read the trees of a run."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from treeagent.pipeline.folder import COLLECTED
from treeagent.search.node import Tree
from treeagent.search.record import from_record, storable_trees
from treeagent.store import read_as, write_shard
from treeagent.types import UserError
from treeagent.views.figures import task_groups


def write_trees(folder: Path, name: str, index: int, trees: Iterable[Tree]) -> None:
    """Write trees as one shard."""
    write_shard(folder, name, index, (record for _, record in storable_trees(trees)))


def stored_trees(folder: Path, name: str | None = None, index: int | None = None) -> Iterator[Tree]:
    """Yield the trees, or the episodes, of the shards of a name, or of all, one at a time."""
    return read_as(from_record, folder, name, index)


def read_trees(folder: Path, names: Sequence[str] = (COLLECTED,)) -> Iterator[Tree]:
    """Yield the searched training trees of the shards with these names."""
    for name in names:
        for tree in stored_trees(folder, name):
            if tree.text_only:
                raise UserError(
                    f"the tree of task {tree.task.id} in {folder} holds actions without token ids, and cannot be "
                    "learned from: collect with a server that gives token ids, or import transcripts with --checkpoint"
                )
            yield tree


def trees_by_task(folder: Path, names: Sequence[str]) -> Iterator[list[Tree]]:
    """Yield the trees of ``read_trees`` grouped by task, each group once its last tree was read."""
    ids = (read_as(lambda record: str(record["task"]["id"]), folder, name) for name in names)
    left, held = Counter(chain.from_iterable(ids)), defaultdict[str, list[Tree]](list)
    for tree in read_trees(folder, names):
        held[tree.task.id].append(tree)
        left[tree.task.id] -= 1
        if not left[tree.task.id]:
            trees = held.pop(tree.task.id)
            for group in task_groups(trees):  # tasks of other options may have the same id
                yield [trees[place] for place in group]

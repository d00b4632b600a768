"""The searched training trees of a run, read from its shards, with the marks of its reviewers."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from treeagent.marks import FILE, Mark, deciding, read_marks
from treeagent.run.folder import COLLECTED
from treeagent.search.node import Tree
from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.types import UserError
from treeagent.views.marked import lay_marks


def run_marks(folder: Path) -> list[Mark]:
    """All marks of the run whose ``folder`` of trees or episodes it is.

    Raises:
        StoreError: the file of marks is damaged.
    """
    return read_marks(folder.parent / FILE)


def marked_trees(
    folder: Path, name: str | None = None, index: int | None = None, marks: Sequence[Mark] | None = None
) -> Iterator[Tree]:
    """The trees of shards, changed by the standing ``marks``; by default those of the run.

    Raises:
        CorruptShard, StoreError: a shard or the file of marks is damaged.
    """
    states = deciding(run_marks(folder) if marks is None else marks)
    tasks = {mark.task_id for found in states.values() for mark in found}
    for tree in read_as(from_record, folder, name, index):
        yield lay_marks(tree, states) if tree.task.id in tasks else tree


def read_trees(folder: Path, names: Sequence[str] = (COLLECTED,), marks: Sequence[Mark] | None = None) -> list[Tree]:
    """The searched training trees of shards of these names, changed as ``marked_trees`` does.

    Raises:
        UserError: a tree was collected by text alone.
    """
    trees = [tree for name in names for tree in marked_trees(folder, name, marks=marks)]
    for tree in trees:
        if tree.text_only:
            raise UserError(
                f"the tree of task {tree.task.id} in {folder} holds actions without token ids: it was collected with "
                "policy.text_only, and cannot be learned from; collect with a server that gives token ids"
            )
    return trees

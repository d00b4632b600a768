"""The searched training trees of a run, read from its shards."""

from collections.abc import Sequence
from pathlib import Path

from treeagent.run.folder import COLLECTED
from treeagent.search.node import Tree
from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.types import UserError


def read_trees(folder: Path, names: Sequence[str] = (COLLECTED,)) -> list[Tree]:
    """The searched training trees of shards of these names.

    Raises:
        UserError: a tree was collected by text alone.
    """
    trees = [tree for name in names for tree in read_as(from_record, folder, name)]
    for tree in trees:
        if tree.text_only:
            raise UserError(
                f"the tree of task {tree.task.id} in {folder} holds actions without token ids: it was collected with "
                "policy.text_only, and cannot be learned from; collect with a server that gives token ids"
            )
    return trees

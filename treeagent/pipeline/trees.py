"""Read the searched training trees of a run from its shards."""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treeagent.pipeline.folder import COLLECTED
from treeagent.pipeline.index import shard_rows
from treeagent.search.node import Tree, task_groups
from treeagent.search.record import from_record
from treeagent.store import read_as, read_lines
from treeagent.types import WHOLE, Share, UserError


def read_trees(folder: Path, names: Sequence[str] = (COLLECTED,)) -> Iterator[Tree]:
    """Yield the searched training trees of the shards with these names. Only one tree is in memory at a time.

    Raises:
        UserError: a tree was collected or imported by text alone.
    """
    return (_learnable(tree, folder) for name in names for tree in read_as(from_record, folder, name))


def trees_by_task(
    folder: Path,
    names: Sequence[str],
    share: Share = WHOLE,
) -> Iterator[tuple[Sequence[int], list[Tree]]]:
    """Yield the trees of ``read_trees`` grouped by task, with their indices in the order of ``read_trees``. Tasks come
    in the order of their first tree. Only the trees of one task are in memory at a time.

    Args:
        share: yield this share of the tasks only. The trees of other tasks are not read.

    Raises:
        UserError: as ``read_trees``.
    """
    files, hashes = list[_File](), array("q")
    for name in names:
        for rows in shard_rows(folder, name):
            files.append(_File(name, rows.index, len(hashes)))
            hashes.extend(hash(row.task) for row in rows.trees)
    following, is_first = _chains(hashes)
    own = np.flatnonzero(is_first)[share.index :: share.count]

    def read(record: Mapping[str, Any]) -> Tree:
        return _learnable(from_record(record), folder)

    def read_at(file: _File, places: NDArray[np.int64]) -> Iterator[Tree]:
        return read_lines(read, folder, file.name, file.index, (int(place) - file.first for place in places))

    for number, file in enumerate(files):
        end = files[number + 1].first if number + 1 < len(files) else len(hashes)
        places = own[np.searchsorted(own, file.first) : np.searchsorted(own, end)]
        for first, tree in zip(places, read_at(file, places), strict=True):
            found = [(int(first), tree)]
            while (place := following[found[-1][0]]) >= 0:
                at = files[bisect_right(files, place, key=lambda each: each.first) - 1]
                found += [(int(place), later) for later in read_at(at, np.array([place]))]
            # Equal hashes do not imply the same task.
            for group in task_groups([tree for _, tree in found]):
                yield [found[index][0] for index in group], [found[index][1] for index in group]


@dataclass(frozen=True, slots=True)
class _File:
    """A shard of trees."""

    name: str
    index: int
    """Number of the shard."""
    first: int
    """Index of its first tree among all trees that are read."""


def _chains(values: "array[int]") -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Link equal values: for each value, the index of the next equal one, -1 if there is none; and whether it is the
    first of its kind. Takes some 30 bytes of memory per value, because there may be millions of trees."""
    numbers = np.frombuffer(values, dtype=np.int64)
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    repeats = ordered[1:] == ordered[:-1]
    del ordered
    later, earlier = order[1:][repeats], order[:-1][repeats]
    following, is_first = np.full(len(numbers), -1, dtype=np.int64), np.ones(len(numbers), dtype=np.bool_)
    following[earlier], is_first[later] = later, False
    return following, is_first


def _learnable(tree: Tree, folder: Path) -> Tree:
    if tree.text_only:
        raise UserError(
            f"the tree of task {tree.task.id} in {folder} holds actions without token ids, and cannot be learned from: "
            "collect with a server that gives token ids, or import transcripts with --checkpoint"
        )
    return tree

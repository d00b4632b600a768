"""Padded batches of rows, in an order that a resumed training reproduces."""

import math
import random
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.utils.data import Sampler

_POOL = 8
"""Number of batches whose rows are sorted by length together. This saves padding, and batches still differ between
epochs."""


class OfTask(Protocol):
    """A row that belongs to a task."""

    @property
    def task_id(self) -> str: ...


class Batches(Sampler[list[int]]):
    """Batches of rows that belong together, by length or by group, in an order that depends only on the seed and the
    epoch."""

    drop_last = False  # accelerate reads it

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        seed: int,
        repeats: int = 1,
        *,
        groups: Sequence[str] = (),
        full: bool = False,
    ) -> None:
        """Args:
        lengths: tokens of each row; rows of similar length share a batch.
        batch_size: rows per batch; the last rows of an epoch may make a smaller one.
        repeats: how many times in a row each process draws a batch.
        groups: the group of each row, if given; then rows of one group share a batch, whatever their length.
        full: with several processes, all batches have the same size; the first rows fill up the last batch.
        """
        self.lengths = lengths
        self.size = batch_size  # if named batch_size, accelerate would drop turns that end in a smaller batch
        self.seed = seed
        self.repeats = repeats
        self.groups = groups
        self.full = full
        self.processes = 1
        """Number of processes, which draw batches in turn. All get the same number of batches, so the first batches may
        be drawn twice."""
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. transformers and accelerate call this at the beginning of each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        turns = math.ceil(math.ceil(len(self.lengths) / self.size) / self.processes)
        return turns * self.processes * self.repeats

    def __iter__(self) -> Iterator[list[int]]:
        shuffler = random.Random(f"{self.seed}/{self.epoch}")
        order = self._by_group(shuffler) if self.groups else self._by_length(shuffler)
        starts = array("q", range(0, len(order), self.size))
        if self.full and self.processes > 1 and len(starts) > 1:
            order += order[: starts[-1] + self.size - len(order)]
        shuffler.shuffle(starts)
        for first in range(0, len(starts), self.processes):
            turn = [starts[index % len(starts)] for index in range(first, first + self.processes)]
            for _ in range(self.repeats):
                yield from (list(order[start : start + self.size]) for start in turn)

    def _by_length(self, shuffler: random.Random) -> "array[int]":
        order = array("q", range(len(self.lengths)))
        shuffler.shuffle(order)
        pool = self.size * _POOL
        for start in range(0, len(order), pool):
            order[start : start + pool] = array("q", sorted(order[start : start + pool], key=self.lengths.__getitem__))
        return order

    def _by_group(self, shuffler: random.Random) -> "array[int]":
        members: dict[str, array[int]] = {}
        for row, group in enumerate(self.groups):
            members.setdefault(group, array("q")).append(row)
        names = list(members)
        shuffler.shuffle(names)
        return array("q", (row for name in names for row in members[name]))


def row_numbers(count: int) -> Dataset:
    """The data set for TRL: only the indices of rows, which the collator looks up. Nothing is copied or tokenised."""
    return Dataset.from_dict({"row": np.arange(count)})


def lengths_of(lengths: Iterable[int]) -> Sequence[int]:
    """Lengths as an array of 8 bytes each."""
    return array("q", lengths)


def tasks_of(rows: Sequence[OfTask]) -> Sequence[str]:
    """The task id of each row. Rows of one task share one string in memory."""
    return [sys.intern(row.task_id) for row in rows]


def pad(rows: Sequence[Sequence[float]], dtype: torch.dtype, value: float = 0) -> Tensor:
    """Stack rows into a (rows, longest) tensor, padded on the right with ``value``. Token ids may be padded with any
    id, because padding is never attended to."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], dtype=dtype)


def padded(rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """``input_ids`` and ``attention_mask`` of rows of token ids, (rows, longest)."""
    return {"input_ids": pad(rows, torch.long), "attention_mask": pad([[1] * len(row) for row in rows], torch.long)}

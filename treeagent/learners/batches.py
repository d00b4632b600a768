"""From rows to padded batches, in an order that a resumed training finds again."""

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
"""Rows of so many batches are sorted by length together, which saves padding but keeps batches different in every
epoch."""


class OfTask(Protocol):
    """A row that belongs to a task."""

    @property
    def task_id(self) -> str: ...


class Batches(Sampler[list[int]]):
    """Batches of rows that belong together, in an order that depends on the seed and the epoch alone."""

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
        batch_size: rows per batch; the last batch of an epoch's pool may be smaller.
        repeats: times in a row that each process draws a batch.
        groups: the group of each row, if given; then rows of one group share a batch, whatever their length.
        full: several processes draw batches of one size; the last rows are joined by the first.
        """
        self.lengths = lengths
        self.size = batch_size  # under the name batch_size, accelerate would drop turns that end in a smaller batch
        self.seed = seed
        self.repeats = repeats
        self.groups = groups
        self.full = full
        self.processes = 1
        """How many processes take turns at drawing. Each gets as many batches; the first ones may be drawn twice."""
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by transformers and accelerate as each epoch begins."""
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
            turn = [starts[place % len(starts)] for place in range(first, first + self.processes)]
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
    """The data set that TRL gets: numbers of rows, which the collator looks up. Nothing is copied or tokenised."""
    return Dataset.from_dict({"row": np.arange(count)})


def lengths_of(lengths: Iterable[int]) -> Sequence[int]:
    """Numbers of tokens, in 8 bytes each."""
    return array("q", lengths)


def tasks_of(rows: Sequence[OfTask]) -> Sequence[str]:
    """The task of each row; rows of one task share one string."""
    return [sys.intern(row.task_id) for row in rows]


def pad(rows: Sequence[Sequence[float]], dtype: torch.dtype, value: float = 0) -> Tensor:
    """Rows to a (rows, longest) tensor, padded on the right. Any token will do for ids: padding is never attended."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], dtype=dtype)

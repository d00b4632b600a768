"""From rows to padded batches, in an order that a resumed training finds again."""

import itertools
import math
import random
from collections.abc import Iterator, Sequence

import torch
from datasets import Dataset
from torch import Tensor
from torch.utils.data import Sampler

_POOL = 8
"""Rows of so many batches are sorted by length together, which saves padding but keeps batches different in every
epoch."""


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
        batches = [order[start : start + self.size] for start in range(0, len(order), self.size)]
        if self.full and self.processes > 1 and len(batches) > 1:
            batches[-1] += order[: self.size - len(batches[-1])]
        shuffler.shuffle(batches)
        for start in range(0, len(batches), self.processes):
            turn = list(itertools.islice(itertools.cycle(batches), start, start + self.processes))
            for _ in range(self.repeats):
                yield from turn

    def _by_length(self, shuffler: random.Random) -> list[int]:
        order = list(range(len(self.lengths)))
        shuffler.shuffle(order)
        pool = self.size * _POOL
        for start in range(0, len(order), pool):
            order[start : start + pool] = sorted(order[start : start + pool], key=lambda row: self.lengths[row])
        return order

    def _by_group(self, shuffler: random.Random) -> list[int]:
        members: dict[str, list[int]] = {}
        for row, group in enumerate(self.groups):
            members.setdefault(group, []).append(row)
        names = list(members)
        shuffler.shuffle(names)
        return [row for name in names for row in members[name]]


def row_numbers(count: int) -> Dataset:
    """The data set that TRL gets: numbers of rows, which the collator looks up. Nothing is copied or tokenised."""
    return Dataset.from_dict({"row": list(range(count))})


def pad(rows: Sequence[Sequence[float]], dtype: torch.dtype, value: float = 0) -> Tensor:
    """Rows to a (rows, longest) tensor, padded on the right. Any token will do for ids: padding is never attended."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], dtype=dtype)

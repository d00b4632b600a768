"""From rows to padded batches, in an order that a resumed training finds again."""

import math
import random
from collections.abc import Iterator, Sequence

import torch
from datasets import Dataset  # type: ignore[import-untyped]  # ships no types
from torch import Tensor
from torch.utils.data import Sampler

_POOL = 8
"""Batches whose rows are sorted by length together: little padding, and yet other batches in every epoch."""


class Batches(Sampler[list[int]]):
    """Batches of rows of similar length, in an order that depends on the seed and the epoch alone."""

    drop_last = False  # accelerate asks

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int, repeats: int = 1) -> None:
        """Args:
        lengths: tokens of each row.
        batch_size: rows per batch; the last batch of an epoch's pool may be smaller.
        repeats: times in a row that each batch is drawn.
        """
        self.lengths = lengths
        self.batch_size = batch_size
        self.seed = seed
        self.repeats = repeats
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by transformers and accelerate as each epoch begins."""
        self.epoch = epoch

    def __len__(self) -> int:
        return math.ceil(len(self.lengths) / self.batch_size) * self.repeats

    def __iter__(self) -> Iterator[list[int]]:
        shuffler = random.Random(f"{self.seed}/{self.epoch}")
        order = list(range(len(self.lengths)))
        shuffler.shuffle(order)
        pool = self.batch_size * _POOL
        for start in range(0, len(order), pool):
            order[start : start + pool] = sorted(order[start : start + pool], key=lambda row: self.lengths[row])
        batches = [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]
        shuffler.shuffle(batches)
        for batch in batches:
            for _ in range(self.repeats):
                yield batch


def row_numbers(count: int) -> Dataset:
    """The data set as TRL sees it: numbers of rows, which the collator looks up; nothing is copied or tokenised."""
    return Dataset.from_dict({"row": list(range(count))})


def pad(rows: Sequence[Sequence[float]], dtype: torch.dtype, value: float = 0) -> Tensor:
    """Rows to a (rows, longest) tensor, padded on the right. Ids need no particular one: padding is never attended."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], dtype=dtype)

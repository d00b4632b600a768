"""Memory of a training. If a step runs out of it, the batch goes through the model in parts, with the same gradients.

The effect is that of half the micro-batch and twice the accumulation, but the order of the rows stays the same.
"""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

Inputs = dict[str, Any]


def part_bounds(rows: int, parts: int) -> list[tuple[int, int]]:
    """The (begin, end) of each part of ``rows`` rows: ``parts`` parts of about equal size, but at most one per row."""
    parts = min(parts, rows)
    cuts = [rows * part // parts for part in range(parts + 1)]
    return list(pairwise(cuts))


def return_memory() -> None:
    """Return memory that is free to the system. On a CPU, glibc would keep that of a training's activations: after the
    warm start of a model of 135 million weights some 10 GiB, beside which workers load their models."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
    if trim is not None:
        trim(0)


def slice_rows(inputs: Inputs, first: int, last: int, rows: int) -> Inputs:
    """Slice ``first:last`` of every tensor with ``rows`` rows; everything else is kept."""
    return {
        name: value[first:last] if isinstance(value, Tensor) and value.dim() and len(value) == rows else value
        for name, value in inputs.items()
    }


def sum_losses(model: nn.Module, losses: Iterable[Callable[[], Tensor]]) -> Tensor:
    """The sum of losses, as one tensor. Its gradients are computed here already, and its backward pass only adds them.
    The gradients of each loss are computed before the next loss, so only the activations of one loss are in memory at a
    time, and one more copy of the gradients."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    sums = list[Tensor | None]([None] * len(trained))
    total: Tensor | None = None
    for loss in losses:
        value = loss()
        for index, gradient in enumerate(torch.autograd.grad(value, trained, allow_unused=True)):
            before = sums[index]
            if gradient is not None:
                sums[index] = gradient if before is None else before.add_(gradient)
        total = value.detach() if total is None else total + value.detach()
        del value
    assert total is not None
    result: Tensor = _WithGradients.apply(total, sums, *trained)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return result


class _WithGradients(torch.autograd.Function):
    """A value with given gradients with respect to some weights."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: Sequence[Tensor | None], *weights: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(None if each is None else each * outer[0] for each in ctx.gradients)


class SavedGradients:
    """Sets aside the gradients of earlier micro-batches, because the next micro-batch may fail in the middle of its
    backward pass."""

    def __init__(self, model: nn.Module) -> None:
        self._weights = [weight for weight in model.parameters() if weight.grad is not None]
        self._kept = [weight.grad for weight in self._weights]
        for weight in self._weights:
            weight.grad = None

    def add(self) -> None:
        """Add the gradients set aside to those that the model has now."""
        for weight, saved in zip(self._weights, self._kept, strict=True):
            assert saved is not None
            weight.grad = saved if weight.grad is None else saved.add_(weight.grad)

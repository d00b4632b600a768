"""Finds the positions whose language-model head a trainer's loss reaches."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from transformers import LlamaForCausalLM, MistralForCausalLM


@contextmanager
def head_gradients(model: LlamaForCausalLM | MistralForCausalLM) -> Iterator[dict[tuple[int, ...], list[Tensor]]]:
    """For each row read inside the block, by its token ids without padding: the gradient of the loss with respect to
    the last hidden state at each position. Only the head reads that state, so its gradient is nonzero exactly where the
    next token has loss."""
    found: dict[tuple[int, ...], list[Tensor]] = {}

    def collect(module: object, arguments: object, read: dict[str, Any], output: Any) -> None:
        rows = [tuple(token for token in ids if token) for ids in read["input_ids"].tolist()]  # 0 is padding

        def keep(gradient: Tensor) -> None:
            for row, positions in zip(rows, gradient, strict=True):
                found[row] = list(positions[: len(row)])

        output.last_hidden_state.register_hook(keep)

    handle = model.model.register_forward_hook(collect, with_kwargs=True)
    try:
        yield found
    finally:
        handle.remove()

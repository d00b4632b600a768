"""Train the rows of a tree as one trie: the common prefix of several rows goes through the model once, forward and
backward.

The position of a token is its depth in the trie, and it attends only to itself and its ancestors. So its hidden state
and all gradients are the same as if each row went through the model alone.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from treeagent.generators.attention import backbone, base_model, unmasked
from treeagent.learners.common import Model
from treeagent.types import UserError

_WIDTH_STEP = 16
"""Difference, in tokens, between the widths of packs that are compared."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows merged into tries. A pack holds one or several tries."""

    input_ids: Tensor
    """(packs, width)"""
    position_ids: Tensor
    """(packs, width): the depth of each token in its trie."""
    attention_mask: Tensor
    """(packs, 1, width, width): 0 if a token (third axis) attends to another (fourth axis), else -inf. A model must get
    it in its own number format: attention on a GPU refuses another one, or misreads it."""
    flat_indices: Tensor
    """(rows, longest - 1): the index of each token of a row in the flattened packs; 0 beyond the row. The last token of
    a row is left out, because nothing is predicted from it."""


def pack(rows: Sequence[Sequence[int]], most_tokens: int, hidden_size: int) -> Packed:
    """Merge rows, each of at least one token id, into packs of at most ``most_tokens`` tokens. A longer row is a
    separate pack.

    In lexicographic order, the longest prefix that a row shares with any earlier row is the one that it shares with the
    row just before it. So each pack takes consecutive rows of that order. Of several widths up to the bound, the
    cheapest is taken: a transformer layer takes about 12 d² multiplications per token, and 2 d for each token of the
    pack that attention compares it with (d is ``hidden_size``).
    """
    inputs = [tuple(row[: max(len(row) - 1, 1)]) for row in rows]
    order = sorted(range(len(rows)), key=lambda row: inputs[row])
    shared = [0, *(_common_length(inputs[before], inputs[row]) for before, row in pairwise(order))]
    lengths = [len(inputs[row]) for row in order]
    longest = max(lengths)
    widths = [*range(longest, most_tokens, _WIDTH_STEP), max(most_tokens, longest)]
    starts, width = min(
        (_pack_starts(lengths, shared, width) for width in widths),
        key=lambda filled: len(filled[0]) * filled[1] * (6 * hidden_size + filled[1]),
    )
    ids = torch.zeros(len(starts), width, dtype=torch.long)
    positions = torch.zeros(len(starts), width, dtype=torch.long)
    seen = torch.eye(width, dtype=torch.bool).repeat(len(starts), 1, 1)  # padding sees itself, or softmax gives NaN
    flat_indices = torch.zeros(len(rows), max(map(len, rows)) - 1, dtype=torch.long)
    number, end, path = -1, 0, torch.zeros(0, dtype=torch.long)
    for index, row in enumerate(order):
        if index in starts:
            number, end, path = number + 1, 0, path[:0]
        above = path[: shared[index]]
        first, end = end, end + lengths[index] - len(above)
        ids[number, first:end] = torch.tensor(inputs[row][len(above) :])
        positions[number, first:end] = torch.arange(len(above), lengths[index])
        seen[number, first:end][:, above] = True
        seen[number, first:end, first:end] = torch.ones(end - first, end - first, dtype=torch.bool).tril()
        path = torch.cat([above, torch.arange(first, end)])
        length = len(rows[row]) - 1
        flat_indices[row, :length] = number * width + path[:length]
    return Packed(ids, positions, torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)[:, None], flat_indices)


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of the common prefix of two rows."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(first), len(second)))


def _pack_starts(lengths: Sequence[int], shared: Sequence[int], width: int) -> tuple[list[int], int]:
    """Fill packs one after the other with up to ``width`` tokens. Returns the indices of the rows that begin a pack,
    and the number of tokens of the fullest pack."""
    starts, used, fullest = list[int](), width, 0
    for index, (length, common) in enumerate(zip(lengths, shared, strict=True)):
        if index == 0 or used + length - common > width:
            starts.append(index)
            used = length
        else:
            used += length - common
        fullest = max(fullest, used)
    return starts, fullest


@contextmanager
def states_at(model: Model, flat_indices: Tensor) -> Iterator[None]:
    """A context in which the language-model head of ``model`` reads only the hidden states at the flat indices
    ``flat_indices``, as (1, states, hidden_size)."""

    def pick(module: nn.Module, arguments: object, output: BaseModelOutputWithPast) -> BaseModelOutputWithPast:
        assert output.last_hidden_state is not None
        output.last_hidden_state = output.last_hidden_state.flatten(0, 1)[flat_indices][None]
        return output

    hook = backbone(model).register_forward_hook(pick)
    try:
        yield
    finally:
        hook.remove()


def why_unpackable(model: Model) -> str:
    """The reason why ``model`` cannot be packed, as a clause that follows "it"; empty if it can. A model cannot be
    packed if a hidden state depends on more than the token's ancestors and depth, or if it ignores the mask."""
    base = base_model(model)
    config = base.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    reasons = [unmasked(model)]
    if kinds or getattr(config, "sliding_window", None):
        reasons.append(f"has layers that do not see the whole row ({', '.join(sorted(kinds)) or 'sliding_window'})")
    if getattr(config, "output_router_logits", False):
        reasons.append("balances its experts over whole rows (output_router_logits)")
    if isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning:
        reasons.append("has trained prompt tokens before every row")
    return next(filter(None, reasons), "")


def refuse_unpackable(model: Model) -> None:
    """Check that ``model`` can be packed.

    Raises:
        UserError: it cannot.
    """
    if reason := why_unpackable(model):
        base = base_model(model)
        raise UserError(f"packed=True cannot train {type(base).__name__}: it {reason}; set packed=False")

"""Rows of a tree trained as one trie: tokens that several rows begin with go through the model once, forward and
backward.

A token stands at its depth in the trie and attends to its ancestors alone. So its hidden state and every gradient are
those of the row by itself.
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
"""Tokens between the widths of packs that are compared."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows as tries; a pack holds one trie or several."""

    input_ids: Tensor
    """(packs, width)"""
    position_ids: Tensor
    """(packs, width), the depth in the trie."""
    attention_mask: Tensor
    """(packs, 1, width, width), 0 where a token (third axis) sees another (fourth), -inf elsewhere."""
    places: Tensor
    """(rows, longest - 1): where each token of a row but its last, which nothing is predicted from, stands in the
    flattened packs; 0 beyond the row."""


def pack(rows: Sequence[Sequence[int]], most_tokens: int, hidden_size: int) -> Packed:
    """Merge rows, each of one token id or more, into packs of at most ``most_tokens`` or of one longer row.

    In lexicographic order a row shares with the one before it all that it shares with any earlier one, so a pack is a
    run of that order. Of several widths up to the bound the cheapest is taken: a transformer layer multiplies about
    12 d² times a token, and 2 d times for each token of the pack that attention compares it with (d is
    ``hidden_size``).
    """
    inputs = [tuple(row[: max(len(row) - 1, 1)]) for row in rows]
    order = sorted(range(len(rows)), key=lambda row: inputs[row])
    shared = [0, *(_common(inputs[before], inputs[row]) for before, row in pairwise(order))]
    lengths = [len(inputs[row]) for row in order]
    longest = max(lengths)
    widths = [*range(longest, most_tokens, _WIDTH_STEP), max(most_tokens, longest)]
    starts, width = min(
        (_fill(lengths, shared, width) for width in widths),
        key=lambda filled: len(filled[0]) * filled[1] * (6 * hidden_size + filled[1]),
    )
    ids = torch.zeros(len(starts), width, dtype=torch.long)
    positions = torch.zeros(len(starts), width, dtype=torch.long)
    seen = torch.eye(width, dtype=torch.bool).repeat(len(starts), 1, 1)  # padding sees itself: a softmax needs a value
    places = torch.zeros(len(rows), max(map(len, rows)) - 1, dtype=torch.long)
    number, end, path = -1, 0, torch.zeros(0, dtype=torch.long)
    for place, row in enumerate(order):
        if place in starts:
            number, end, path = number + 1, 0, path[:0]
        above = path[: shared[place]]
        first, end = end, end + lengths[place] - len(above)
        ids[number, first:end] = torch.tensor(inputs[row][len(above) :])
        positions[number, first:end] = torch.arange(len(above), lengths[place])
        seen[number, first:end][:, above] = True
        seen[number, first:end, first:end] = torch.ones(end - first, end - first, dtype=torch.bool).tril()
        path = torch.cat([above, torch.arange(first, end)])
        kept = len(rows[row]) - 1
        places[row, :kept] = number * width + path[:kept]
    return Packed(ids, positions, torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)[:, None], places)


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two rows begin with in common."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(first), len(second)))


def _fill(lengths: Sequence[int], shared: Sequence[int], width: int) -> tuple[list[int], int]:
    """Which rows open a pack if packs are filled up to ``width`` tokens in turn, and the tokens of the fullest."""
    starts, used, fullest = list[int](), width, 0
    for place, (length, common) in enumerate(zip(lengths, shared, strict=True)):
        if place == 0 or used + length - common > width:
            starts.append(place)
            used = length
        else:
            used += length - common
        fullest = max(fullest, used)
    return starts, fullest


@contextmanager
def states_at(model: Model, places: Tensor) -> Iterator[None]:
    """Within, the language-model head of ``model`` reads (1, states, hidden_size): those at the flat ``places``."""

    def pick(module: nn.Module, arguments: object, output: BaseModelOutputWithPast) -> BaseModelOutputWithPast:
        assert output.last_hidden_state is not None
        output.last_hidden_state = output.last_hidden_state.flatten(0, 1)[places][None]
        return output

    hook = backbone(model).register_forward_hook(pick)
    try:
        yield
    finally:
        hook.remove()


def why_unpackable(model: Model) -> str:
    """Why a token's hidden state depends on more than its ancestors and its depth, or the mask is not heeded, as what
    follows "it"; empty if ``model`` can be packed."""
    whole = base_model(model)
    config = whole.config.get_text_config()
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
    """Raises ``UserError`` if ``model`` cannot be packed."""
    if reason := why_unpackable(model):
        whole = base_model(model)
        raise UserError(f"packed=True cannot train {type(whole).__name__}: it {reason}; set packed=False")

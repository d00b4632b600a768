"""Train the rows of trees as tries: the common prefix of several rows goes through the model once, forward and
backward. A token's position is its depth, and it attends only to itself and its ancestors, so states and gradients
stay those of separate rows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from treeagent.generators.attention import additive, backbone, base_model, unmasked
from treeagent.types import UserError

Model = PreTrainedModel | PeftModel

_MOST_TOKENS = 4096
"""Most tokens of a pack, whose attention mask grows with its square."""
_WIDTH_STEP = 16
"""Difference, in tokens, between the widths of packs that are compared."""
_SAVING = 0.9
"""Largest cost of packs, relative to padded rows, at which rows are packed."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows merged into tries. A pack holds one or several tries, each in preorder."""

    input_ids: Tensor
    """(packs, width)"""
    position_ids: Tensor
    """(packs, width): the depth of each token in its trie."""
    ends: Tensor
    """(packs, width): the index after the last token of the subtree below each token. In preorder, a subtree is
    contiguous, so token q attends to token k if k <= q < ends[k]."""
    flat_indices: Tensor
    """(rows, longest): the index of each token of a row in the flattened packs; 0 beyond the row."""


def _cost(rows: int, width: int, hidden_size: int, seen: float = 1) -> float:
    """The relative cost of (rows, width) tokens: a layer takes about 12 d² multiplications per token, and 2 d for each
    of the ``seen`` share of a row that attention reads for a token."""
    return rows * width * (6 * hidden_size + seen * width)


def pack(rows: Sequence[Sequence[int]], hidden_size: int, most_tokens: int = _MOST_TOKENS) -> Packed:
    """Merge rows, each of at least one token id, into packs of at most ``most_tokens`` tokens, of the cheapest width; a
    longer row is a separate pack."""
    # In this order the longest prefix that a row shares with any earlier one is the one it shares with the one before.
    order = sorted(range(len(rows)), key=lambda row: tuple(rows[row]))
    shared = [0, *(_common_length(rows[before], rows[row]) for before, row in pairwise(order))]
    lengths = [len(rows[row]) for row in order]
    longest = max(lengths)
    most = max(min(most_tokens, sum(lengths) - sum(shared)), longest)  # all rows in one pack need no more
    widths = [*range(longest, most, _WIDTH_STEP), most]
    starts, width = min(
        (_pack_starts(lengths, shared, width) for width in widths),
        key=lambda filled: _cost(len(filled[0]), filled[1], hidden_size),
    )
    ids, positions = torch.zeros(2, len(starts), width, dtype=torch.long)
    ends = torch.arange(1, width + 1).repeat(len(starts), 1)  # padding attends to itself, or softmax gives NaN
    flat_indices = torch.zeros(len(rows), longest, dtype=torch.long)
    number, end, path = -1, 0, torch.zeros(0, dtype=torch.long)
    for index, row in enumerate(order):
        if index in starts:
            number, end, path = number + 1, 0, path[:0]
        above = path[: shared[index]]
        first, end = end, end + lengths[index] - len(above)
        path = torch.cat([above, torch.arange(first, end)])
        ids[number, first:end] = torch.tensor(rows[row][len(above) :], dtype=torch.long)
        positions[number, first:end] = torch.arange(len(above), lengths[index])
        ends[number, path] = end
        flat_indices[row, : lengths[index]] = number * width + path
    return Packed(ids, positions, ends, flat_indices)


def _common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of the common prefix of two rows."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(first), len(second)))


def _pack_starts(lengths: Sequence[int], shared: Sequence[int], width: int) -> tuple[list[int], int]:
    """Fill packs with up to ``width`` tokens. Returns the rows that begin a pack, and the fullest pack's tokens."""
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
    """A context in which the language-model head reads only the states at ``flat_indices``: (1, states, hidden)."""

    def pick(module: nn.Module, arguments: object, output: Any) -> None:
        output.last_hidden_state = output.last_hidden_state.flatten(0, 1)[flat_indices][None]

    with backbone(model).register_forward_hook(pick):
        yield


def pack_mask(model: Model, ends: Tensor) -> Tensor:
    """The ``attention_mask`` with which ``model`` runs on packs: (packs, 1, width, width)."""
    indices = torch.arange(ends.shape[1], device=ends.device)
    seen = (indices <= indices[:, None]) & (indices[:, None] < ends[:, None])
    return additive(seen, base_model(model).dtype, ends.device)


class Packing:
    """The packs of one batch after the other, made and taken apart by ``pack_prefixes``."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._hidden_size: int = model.config.get_text_config().hidden_size
        self._packs = False
        self.flat_indices = torch.zeros(0, 0, dtype=torch.long)
        """(rows, longest): the index of each token in the flattened hidden states that the backbone computed for the
        last batch."""

    def pack(self, module: nn.Module, args: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """Replace rows by packs, if packs are cheaper."""
        self._packs = False
        if len(args) == 1:  # GPT-2's head passes the token ids by position
            args, named = (), {"input_ids": args[0], **named}
        ids, mask = named.get("input_ids"), named.get("attention_mask")
        placed = any(named.get(name) is not None for name in ("past_key_values", "position_ids"))
        if args or ids is None or placed or any(named.get(name) for name in _OTHER_USES):
            return None
        if mask is not None and mask.dim() != 2:
            return None
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        real[:, 0] |= ~real.any(1)  # a row of padding alone
        rows = [row[seen].tolist() for row, seen in zip(ids, real, strict=True)]
        packed, size = pack(rows, self._hidden_size), self._hidden_size
        packs, width = packed.ends.shape
        longest = max(map(len, rows))
        # Padding at the end needs no mask. Without one, attention skips what follows a token, half of a row.
        at_end = mask is None or bool((mask[:, 1:] <= mask[:, :-1]).all())
        separate = _cost(len(rows), longest, size, 0.5 if at_end else 1)
        self._packs = _cost(packs, width, size) <= _SAVING * separate
        if not self._packs:
            self.flat_indices = torch.arange(ids.numel(), device=ids.device).view_as(ids)
            return (args, {**named, "attention_mask": None}) if at_end else None
        computed = packed.flat_indices[torch.arange(longest) < real.sum(1, keepdim=True).cpu()]
        self.flat_indices = torch.zeros_like(ids).masked_scatter(real, computed.to(ids.device))
        inputs = {
            "input_ids": packed.input_ids.to(ids.device),
            "position_ids": packed.position_ids.to(ids.device),
            "attention_mask": pack_mask(self._model, packed.ends.to(ids.device)),
        }
        return args, {**named, **inputs, "use_cache": False}

    def unpack(self, module: nn.Module, args: object, output: Any) -> None:
        """Give each row its own hidden states again. Those of padding are arbitrary."""
        if self._packs:
            output.last_hidden_state = output.last_hidden_state.flatten(0, 1)[self.flat_indices]


_OTHER_USES = ("use_cache", "output_attentions", "output_hidden_states", "output_router_logits")
"""Arguments of a forward pass that needs whole rows."""


@contextmanager
def pack_prefixes(model: Model) -> Iterator[Packing]:
    """A context in which ``model`` computes the common prefixes of the rows of a batch once, forward and backward.

    Outputs, losses and gradients stay those of the rows, so your own TRL trainer can run in it:

        with pack_prefixes(model):
            trainer.train()

    Where packs would not be cheaper, and in passes with a cache of keys and values, rows are computed as they stand.
    """
    if reason := why_unpackable(model):
        raise UserError(f"the rows of {type(base_model(model)).__name__} cannot be packed: it {reason}")
    packing, body = Packing(model), backbone(model)
    before = body.register_forward_pre_hook(packing.pack, with_kwargs=True)
    with before, body.register_forward_hook(packing.unpack):
        yield packing


def why_unpackable(model: Model) -> str:
    """Why a hidden state depends on more than the token's ancestors and depth, as a clause; empty if it does not."""
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

"""What the layers of a transformers model may attend to, and which models can be told so by a mask.

A mask of four dimensions replaces those that a model would make, the windows of its layers included: whoever passes one
has to draw the windows too.
"""

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from treeagent.types import UserError

_SIZES = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
"""The setting of transformers' configurations that tells how far layers of a kind see."""


@dataclass(frozen=True, slots=True)
class Window:
    """What a layer sees of the past, itself included."""

    size: int
    chunked: bool = False
    """Whether the row is cut into pieces of ``size``, each seen from within alone; else the last ``size`` are seen."""

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor:
        """[rows, queries, keys], by the positions of queries and keys, [rows, queries] and [rows, keys]."""
        asking, asked = queries[:, :, None], keys[:, None]
        return asking // self.size == asked // self.size if self.chunked else asked > asking - self.size


def base_model(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """The causal language model itself, inside its adapters if it has any."""
    return cast(PreTrainedModel, model.get_base_model()) if isinstance(model, PeftModel) else model


def backbone(model: PreTrainedModel | PeftModel) -> nn.Module:
    """The layers, whose last hidden state the language-model head reads."""
    whole = base_model(model)
    decoder = cast(nn.Module, whole.get_decoder())
    return cast(nn.Module, getattr(whole, "model", whole)) if decoder is whole else decoder  # Llama 4 finds but itself


@contextmanager
def last_hidden_states(model: PreTrainedModel | PeftModel) -> Iterator[list[Tensor]]:
    """Collects the backbone's last hidden states (rows, tokens, hidden_size) from the forward passes inside."""
    collected: list[Tensor] = []

    def collect(module: nn.Module, arguments: object, output: BaseModelOutputWithPast) -> None:
        assert output.last_hidden_state is not None
        collected.append(output.last_hidden_state)

    handle = backbone(model).register_forward_hook(collect)
    try:
        yield collected
    finally:
        handle.remove()


def unmasked(model: PreTrainedModel | PeftModel) -> str:
    """Why masks and positions do not decide what a token of the model depends on, if so."""
    whole = base_model(model)
    config = whole.config.get_text_config()
    attention = config._attn_implementation
    if whole._is_stateful:
        return "carries a recurrent state from token to token"
    if getattr(config, "alibi", False):
        return "weighs tokens by their place in memory (ALiBi)"
    if "position_ids" not in inspect.signature(backbone(model).forward).parameters:
        return "takes no position_ids"
    if attention not in ("sdpa", "eager"):
        return f'runs attn_implementation="{attention}", which takes no four-dimensional mask ("sdpa" does)'
    return ""


def layer_windows(model: PreTrainedModel | PeftModel) -> dict[str, Window | None]:
    """The window of each kind of layer that the model has, by transformers' name; none for one that sees all the past.

    Raises:
        UserError: what its layers see cannot be told by masks and positions.
    """
    if reason := unmasked(model):
        raise unfit(model, reason)
    config = base_model(model).config.get_text_config()
    kinds = dict.fromkeys(getattr(config, "layer_types", None) or ["full_attention"])
    if unknown := sorted(kinds.keys() - _SIZES.keys() - {"full_attention"}):
        raise unfit(model, f"has layers of {', '.join(unknown)}")
    if not getattr(config, "layer_types", None):  # then a window holds for all layers
        kinds = {"sliding_attention" if getattr(config, "sliding_window", None) else "full_attention": None}
    return {kind: _window(config, kind) for kind in kinds}


def _window(config: PreTrainedConfig, kind: str) -> Window | None:
    size: int | None = getattr(config, _SIZES[kind], None) if kind in _SIZES else None
    return Window(size, kind == "chunked_attention") if size else None


def unfit(model: PreTrainedModel | PeftModel, reason: str) -> UserError:
    return UserError(
        f"policy.generator=local cannot run {type(base_model(model)).__name__}: it {reason}; search and evaluate it "
        "with policy.generator=vllm, or take another model to train"
    )


def additive(seen: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[rows, queries, keys] of what may be seen, as the 4-D mask that is added to attention scores."""
    hidden = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)
    return hidden[:, None].to(device)


def windowed(
    windows: Mapping[str, Window | None], mask: Tensor, seen: Tensor, queries: Tensor, keys: Tensor
) -> Tensor | dict[str, Tensor]:
    """What a model of these ``windows`` takes as its ``attention_mask``.

    Args:
        mask: that of a layer without a window: ``seen`` as ``additive`` writes it.
        seen: [rows, queries, keys], of all the past.
        queries: positions, [rows, queries].
        keys: positions, [rows, keys].
    """
    longest = int(queries.max()) + 1
    masks = {
        kind: mask
        if window is None or longest <= window.size
        else additive(seen & window.sees(queries, keys), mask.dtype, mask.device)
        for kind, window in windows.items()
    }
    first, *others = masks.values()
    # Models whose layers are all of one kind need not know of dictionaries.
    return first if all(other is first for other in others) else masks


@contextmanager
def narrowed(model: PreTrainedModel | PeftModel, size: int) -> Iterator[None]:
    """Within, each window of the model is of ``size``, so that few tokens show whether it is kept."""
    parts = [part for part in base_model(model).modules() if isinstance(part, PreTrainedModel)]
    configs = {id(config): config for part in parts for config in (part.config, part.config.get_text_config())}
    sizes = [
        (config, name, getattr(config, name))
        for config in configs.values()
        for name in _SIZES.values()
        if getattr(config, name, None)
    ]
    for config, name, _ in sizes:
        setattr(config, name, size)
    try:
        yield
    finally:
        for config, name, known in sizes:
            setattr(config, name, known)


def context_length(model: PreTrainedModel | PeftModel) -> int:
    """Tokens up to which a token's position alone rotates its key; without end where the configuration does not tell.

    LongRoPE turns all keys otherwise in a row that is longer than the model was trained on, those in a cache too.
    """
    config = base_model(model).config.get_text_config()
    limit: int = getattr(config, "max_position_embeddings", None) or sys.maxsize
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if parameters.get("rope_type") == "longrope":
            limit = min(limit, parameters.get("original_max_position_embeddings") or limit)
    return limit

"""Attention windows of the layers of a transformers model, and which models can be controlled by a mask.

A four-dimensional attention mask replaces the model's own, so it must include sliding and chunked windows.
"""

import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from treeagent.types import UserError

_SIZES = {"full_attention": "", "sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
"""For each kind of layer, the name of the configuration's setting with the size of its window, as in transformers."""
if not torch.cuda.is_available():
    # Else transformers copies the keys of grouped heads once for each head. PyTorch's CPU kernel needs no copies.
    os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")


def base_model(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """The causal language model itself, without its adapters."""
    return cast(PreTrainedModel, model.get_base_model()) if isinstance(model, PeftModel) else model


def backbone(model: PreTrainedModel | PeftModel) -> nn.Module:
    """The module whose last hidden state the language-model head reads."""
    base = base_model(model)
    decoder = cast(nn.Module, base.get_decoder())
    return cast(nn.Module, getattr(base, "model", base)) if decoder is base else decoder  # Llama 4 returns ``base``


@contextmanager
def hidden_states(model: PreTrainedModel | PeftModel) -> Iterator[list[Tensor]]:
    """Collect hidden states of each forward pass in the block, [rows, tokens, 2 · hidden size]: those of the backbone's
    middle layer (or its last ones, if that cannot be told), and behind them its last ones."""
    collected, middle, body = list[Tensor](), list[Tensor](), backbone(model)
    layers: Any = max((each for each in body.children() if isinstance(each, nn.ModuleList)), key=len, default=())

    def keep(module: nn.Module, arguments: object, output: Tensor | tuple[Tensor, ...]) -> None:
        middle[:] = [output if isinstance(output, Tensor) else output[0]]

    def collect(module: nn.Module, arguments: object, output: Any) -> None:
        last = output.last_hidden_state
        lower = middle.pop() if middle else last
        collected.append(torch.cat([lower.to(last) if lower.shape == last.shape else last, last], -1))

    with ExitStack() as hooks:
        hooks.enter_context(body.register_forward_hook(collect))
        if len(layers):
            hooks.enter_context(layers[len(layers) // 2 - 1].register_forward_hook(keep))
        yield collected


def unmasked(model: PreTrainedModel | PeftModel) -> str:
    """Why mask and positions do not determine which tokens a token depends on, as a clause; empty if they do."""
    base = base_model(model)
    config = base.config.get_text_config()
    attention = config._attn_implementation
    if base._is_stateful:
        return "carries a recurrent state from token to token"
    if getattr(config, "alibi", False):
        return "weighs tokens by their place in memory (ALiBi)"
    if "position_ids" not in inspect.signature(backbone(model).forward).parameters:
        return "takes no position_ids"
    if attention not in ("sdpa", "eager"):
        return f'runs attn_implementation="{attention}", which takes no four-dimensional mask ("sdpa" does)'
    return ""


def layer_windows(model: PreTrainedModel | PeftModel) -> dict[str, int]:
    """The size of the window of each kind of layer, by transformers' name, in tokens including the current one; 0 if it
    attends to all earlier tokens."""
    if reason := unmasked(model):
        raise unfit(model, reason)
    config = base_model(model).config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]  # then a window, if set, holds for all layers
    for kind in kinds:
        if kind not in _SIZES:
            raise unfit(model, f"has layers of {kind}")
    return {kind: getattr(config, _SIZES[kind], None) or 0 for kind in kinds}


def unfit(model: PreTrainedModel | PeftModel, reason: str) -> UserError:
    return UserError(
        f"policy.generator=local cannot run {type(base_model(model)).__name__}: it {reason}; search and evaluate it "
        "with policy.generator=vllm, or take another model to train"
    )


def additive(seen: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``seen``, [rows, queries, keys], as the mask that is added to attention scores, [rows, 1, queries, keys]."""
    hidden = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)
    return hidden[:, None].to(device)


def windowed(
    windows: Mapping[str, int], mask: Tensor, seen: Tensor, queries: Tensor, keys: Tensor
) -> Tensor | dict[str, Tensor]:
    """The ``attention_mask`` of a model with these ``windows``; ``mask`` is ``additive(seen)``, that without a window;
    ``queries`` and ``keys`` are positions, [rows, queries] and [rows, keys]."""
    longest, masks = int(queries.max()) + 1, dict.fromkeys(windows, mask)
    query, key = queries[:, :, None], keys[:, None]
    for kind, size in windows.items():
        if size and longest > size:
            # A token attends within its chunk of ``size`` tokens, or to the last ``size`` tokens.
            inside = query // size == key // size if kind == "chunked_attention" else key > query - size
            masks[kind] = additive(seen & inside, mask.dtype, mask.device)
    first, *others = masks.values()
    # A model with one kind of layer may not accept a dictionary.
    return first if all(other is first for other in others) else masks


def context_length(model: PreTrainedModel | PeftModel) -> int:
    """The most tokens of a row; ``sys.maxsize`` if the configuration gives no limit."""
    return context_of(base_model(model).config)


def context_of(config: PreTrainedConfig) -> int:
    """As ``context_length``. With LongRoPE, keys beyond the original training's length are rotated differently."""
    config = config.get_text_config()
    limit: int = getattr(config, "max_position_embeddings", None) or sys.maxsize
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if parameters.get("rope_type") == "longrope":
            limit = min(limit, parameters.get("original_max_position_embeddings") or limit)
    return limit

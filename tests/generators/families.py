"""Tiny models of the families whose layers do not see the whole row, and of those that are told by no mask."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MptConfig,
    MptForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    SiglipVisionConfig,
)

WINDOW = 8
VOCABULARY = 64

_SPECIAL: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
# Weights so large that predictions are far from uniform, under which a wrong mask would go unnoticed.
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    **_SPECIAL,
}
_OLD: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "initializer_range": 0.3, **_SPECIAL}
_HEADS: dict[str, Any] = {"head_dim": 16, "sliding_window": WINDOW}
_MIXED = ["sliding_attention", "full_attention"]
# With tied embeddings so small a Gemma says its last token again and again.
_GEMMA: dict[str, Any] = {**_HEADS, "tie_word_embeddings": False}
_EXPERTS: dict[str, Any] = {"num_local_experts": 2, "num_experts_per_tok": 1}
_LATENT: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 1,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
}


def composite() -> PreTrainedModel:
    """Its configuration is one of parts, and names no hidden_size itself."""
    torch.manual_seed(0)
    text = Gemma3TextConfig(**_SHAPE, **_GEMMA, layer_types=_MIXED)
    vision = SiglipVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    shape = Gemma3Config(
        text_config=text.to_dict(),
        vision_config=vision.to_dict(),
        mm_tokens_per_image=4,
        image_token_index=63,
        tie_word_embeddings=False,
    )
    model: PreTrainedModel = Gemma3ForConditionalGeneration(shape).eval()
    return model


WINDOWED: dict[str, Callable[[], PreTrainedModel]] = {
    "mistral": lambda: MistralForCausalLM(MistralConfig(**_SHAPE, sliding_window=WINDOW)),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**_SHAPE, sliding_window=WINDOW)),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(**_SHAPE, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1)
    ),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**_SHAPE, **_GEMMA)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**_SHAPE, **_GEMMA, layer_types=_MIXED)),
    "gemma3 of parts": composite,
    "gpt-oss": lambda: GptOssForCausalLM(GptOssConfig(**_SHAPE, **_HEADS, **_EXPERTS)),
    "llama4": lambda: Llama4ForCausalLM(
        Llama4TextConfig(
            **_SHAPE,
            **_EXPERTS,
            head_dim=16,
            attention_chunk_size=WINDOW,
            intermediate_size_mlp=64,
            no_rope_layers=[1, 0],
        )
    ),
}

UNFIT: dict[str, tuple[Callable[[], PreTrainedModel], str]] = {
    "falcon": (
        lambda: FalconForCausalLM(FalconConfig(**_OLD, num_hidden_layers=2, num_attention_heads=2, alibi=True)),
        r"cannot run FalconForCausalLM: it weighs tokens by their place in memory \(ALiBi\)",
    ),
    "mpt": (
        lambda: MptForCausalLM(
            MptConfig(vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=2, initializer_range=0.3, **_SPECIAL)
        ),
        "cannot run MptForCausalLM: it takes no position_ids",
    ),
    "bloom": (
        lambda: BloomForCausalLM(BloomConfig(**_OLD, n_layer=2, n_head=2)),
        "cannot run BloomForCausalLM: it takes no position_ids",
    ),
    "deepseek3": (
        lambda: DeepseekV3ForCausalLM(DeepseekV3Config(**_SHAPE, **_LATENT)),
        "cannot run DeepseekV3ForCausalLM: it does not keep keys and values of one shape",
    ),
    "mamba": (
        lambda: MambaForCausalLM(MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, **_SPECIAL)),
        "cannot run MambaForCausalLM: it carries a recurrent state",
    ),
}


def opt() -> PreTrainedModel:
    """Its language-model head reads the decoder inside what transformers calls the base model."""
    shape = OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        init_std=0.3,
        **_SPECIAL,
    )
    model: PreTrainedModel = OPTForCausalLM(shape)
    return model


def made(make: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = make().eval()
    return model


SOME_WINDOWED = [
    name if name in ("mistral", "gemma3") else pytest.param(name, marks=pytest.mark.slow) for name in WINDOWED
]
"""One with a window in every layer and one that mixes; the others are tested with the slow suite."""

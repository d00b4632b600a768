"""Tiny models of every architecture that ``LocalGenerator`` supports, and of some that it refuses."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers as hf
from transformers import PreTrainedModel

from treeagent.generators.attention import base_model

WINDOW = 8
VOCABULARY = 64

_SPECIAL: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
# Weights so large that predictions are far from uniform. With small weights a wrong mask would go unnoticed.
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
# With tied embeddings a Gemma of this size repeats its last token again and again.
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
    """A configuration made of parts, without a hidden_size of its own."""
    torch.manual_seed(0)
    text = hf.Gemma3TextConfig(**_SHAPE, **_GEMMA, layer_types=_MIXED)
    vision = hf.SiglipVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    shape = hf.Gemma3Config(
        text_config=text.to_dict(),
        vision_config=vision.to_dict(),
        mm_tokens_per_image=4,
        image_token_index=63,
        tie_word_embeddings=False,
    )
    model: PreTrainedModel = hf.Gemma3ForConditionalGeneration(shape).eval()
    return model


WINDOWED: dict[str, Callable[[], PreTrainedModel]] = {
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**_SHAPE, sliding_window=WINDOW)),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**_SHAPE, sliding_window=WINDOW)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(
        hf.Qwen2Config(**_SHAPE, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1)
    ),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**_SHAPE, **_GEMMA)),
    "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**_SHAPE, **_GEMMA, layer_types=_MIXED)),
    "gemma3 of parts": composite,
    "exaone4": lambda: hf.Exaone4ForCausalLM(hf.Exaone4Config(**_SHAPE, sliding_window=WINDOW, layer_types=_MIXED)),
    "olmo3": lambda: hf.Olmo3ForCausalLM(hf.Olmo3Config(**_SHAPE, sliding_window=WINDOW, layer_types=_MIXED)),
    "gpt-oss": lambda: hf.GptOssForCausalLM(hf.GptOssConfig(**_SHAPE, **_HEADS, **_EXPERTS)),
    "llama4": lambda: hf.Llama4ForCausalLM(
        hf.Llama4TextConfig(
            **_SHAPE,
            **_EXPERTS,
            head_dim=16,
            attention_chunk_size=WINDOW,
            intermediate_size_mlp=64,
            no_rope_layers=[1, 0],
        )
    ),
}

_HEAD: dict[str, Any] = {"head_dim": 16}
_NUMBERED_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def opt() -> PreTrainedModel:
    """Its language-model head reads the decoder, which is inside what transformers calls the base model."""
    shape = hf.OPTConfig(
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
    model: PreTrainedModel = hf.OPTForCausalLM(shape)
    return model


FULL: dict[str, Callable[[], PreTrainedModel]] = {
    "cohere": lambda: hf.CohereForCausalLM(hf.CohereConfig(**_SHAPE)),
    "falcon": lambda: hf.FalconForCausalLM(hf.FalconConfig(**_OLD, num_hidden_layers=2, num_attention_heads=2)),
    "gemma": lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**_SHAPE, head_dim=16, tie_word_embeddings=False)),
    "glm4": lambda: hf.Glm4ForCausalLM(hf.Glm4Config(**_SHAPE, head_dim=16)),
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=128, initializer_range=0.3, **_SPECIAL
        )
    ),
    "granite": lambda: hf.GraniteForCausalLM(hf.GraniteConfig(**_SHAPE)),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**_SHAPE)),
    "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**_SHAPE, num_local_experts=4, num_experts_per_tok=2)),
    "olmo2": lambda: hf.Olmo2ForCausalLM(hf.Olmo2Config(**_SHAPE)),
    "opt": opt,
    "phi": lambda: hf.PhiForCausalLM(hf.PhiConfig(**_SHAPE)),
    "qwen2 of experts": lambda: hf.Qwen2MoeForCausalLM(
        hf.Qwen2MoeConfig(**_SHAPE, **_NUMBERED_EXPERTS, shared_expert_intermediate_size=32)
    ),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**_SHAPE, head_dim=16)),
    "qwen3 of experts": lambda: hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**_SHAPE, **_NUMBERED_EXPERTS, **_HEAD)),
    "smollm3": lambda: hf.SmolLM3ForCausalLM(hf.SmolLM3Config(**_SHAPE, no_rope_layers=[1, 0])),
    "stablelm": lambda: hf.StableLmForCausalLM(hf.StableLmConfig(**_SHAPE)),
    "starcoder2": lambda: hf.Starcoder2ForCausalLM(hf.Starcoder2Config(**_SHAPE, sliding_window=None)),
}
"""Models in which every layer sees the whole past."""


UNFIT: dict[str, tuple[Callable[[], PreTrainedModel], str]] = {
    "falcon": (
        lambda: hf.FalconForCausalLM(hf.FalconConfig(**_OLD, num_hidden_layers=2, num_attention_heads=2, alibi=True)),
        r"cannot run FalconForCausalLM: it weighs tokens by their place in memory \(ALiBi\)",
    ),
    "bloom": (
        lambda: hf.BloomForCausalLM(hf.BloomConfig(**_OLD, n_layer=2, n_head=2)),
        "cannot run BloomForCausalLM: it takes no position_ids",
    ),
    "deepseek3": (
        lambda: hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(**_SHAPE, **_LATENT)),
        "cannot run DeepseekV3ForCausalLM: it does not keep keys and values of one shape",
    ),
    "mamba": (
        lambda: hf.MambaForCausalLM(
            hf.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, **_SPECIAL)
        ),
        "cannot run MambaForCausalLM: it carries a recurrent state",
    ),
}


def made(make: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = make().eval()
    return model


@contextmanager
def narrowed(model: PreTrainedModel, size: int) -> Iterator[None]:
    """Within the block, every attention window of the model has this size."""
    parts = [part for part in base_model(model).modules() if isinstance(part, PreTrainedModel)]
    configs = {id(config): config for part in parts for config in (part.config, part.config.get_text_config())}
    sizes = [
        (config, name, getattr(config, name))
        for config in configs.values()
        for name in ("sliding_window", "attention_chunk_size")
        if getattr(config, name, None)
    ]
    for config, name, _ in sizes:
        setattr(config, name, size)
    try:
        yield
    finally:
        for config, name, known in sizes:
            setattr(config, name, known)


SOME_WINDOWED = [
    name if name in ("mistral", "gemma3") else pytest.param(name, marks=pytest.mark.slow) for name in WINDOWED
]
"""One with a window in every layer, and one that mixes. The others run with the slow suite."""

"""Tiny models of every architecture that ``LocalGenerator`` supports, and of some that it refuses."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Exaone4Config,
    Exaone4ForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    Glm4Config,
    Glm4ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    MptConfig,
    MptForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SiglipVisionConfig,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

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
    "exaone4": lambda: Exaone4ForCausalLM(Exaone4Config(**_SHAPE, sliding_window=WINDOW, layer_types=_MIXED)),
    "olmo3": lambda: Olmo3ForCausalLM(Olmo3Config(**_SHAPE, sliding_window=WINDOW, layer_types=_MIXED)),
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

_HEAD: dict[str, Any] = {"head_dim": 16}
_NUMBERED_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def opt() -> PreTrainedModel:
    """Its language-model head reads the decoder, which is inside what transformers calls the base model."""
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


def _neox() -> PreTrainedModel:
    shape = {name: value for name, value in _SHAPE.items() if name != "num_key_value_heads"}
    model: PreTrainedModel = GPTNeoXForCausalLM(GPTNeoXConfig(**shape))
    return model


FULL: dict[str, Callable[[], PreTrainedModel]] = {
    "cohere": lambda: CohereForCausalLM(CohereConfig(**_SHAPE)),
    "falcon": lambda: FalconForCausalLM(FalconConfig(**_OLD, num_hidden_layers=2, num_attention_heads=2)),
    "gemma": lambda: GemmaForCausalLM(GemmaConfig(**_SHAPE, head_dim=16, tie_word_embeddings=False)),
    "glm4": lambda: Glm4ForCausalLM(Glm4Config(**_SHAPE, head_dim=16)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=128, initializer_range=0.3, **_SPECIAL
        )
    ),
    "gpt-neox": _neox,
    "granite": lambda: GraniteForCausalLM(GraniteConfig(**_SHAPE)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_SHAPE)),
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**_SHAPE, num_local_experts=4, num_experts_per_tok=2)),
    "olmo2": lambda: Olmo2ForCausalLM(Olmo2Config(**_SHAPE)),
    "opt": opt,
    "phi": lambda: PhiForCausalLM(PhiConfig(**_SHAPE)),
    "qwen2 of experts": lambda: Qwen2MoeForCausalLM(
        Qwen2MoeConfig(**_SHAPE, **_NUMBERED_EXPERTS, shared_expert_intermediate_size=32)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_SHAPE, head_dim=16)),
    "qwen3 of experts": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**_SHAPE, **_NUMBERED_EXPERTS, **_HEAD)),
    "smollm3": lambda: SmolLM3ForCausalLM(SmolLM3Config(**_SHAPE, no_rope_layers=[1, 0])),
    "stablelm": lambda: StableLmForCausalLM(StableLmConfig(**_SHAPE)),
    "starcoder2": lambda: Starcoder2ForCausalLM(Starcoder2Config(**_SHAPE, sliding_window=None)),
}
"""Models in which every layer sees the whole past."""


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

"""GGUF files become stock checkpoints. A file that cannot be read is refused in one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_llama import tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from treeagent.agent.checkpoint import load_checkpoint
from treeagent.contrib.gguf.files import import_gguf
from treeagent.generators.chat import ChatFormat
from treeagent.types import Message, UserError

gguf = pytest.importorskip("gguf")
WIDTH, HEADS, INNER, LAYERS, CONTEXT = 32, 2, 64, 2, 96
NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def toy() -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=len(tokenizer()),
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(shape)
    model.eval()
    return model


def llama_cpp_order(weight: torch.Tensor) -> torch.Tensor:
    """Rows of queries and keys in llama.cpp's order: the two rows of a rotary pair lie side by side."""
    return weight.view(HEADS, 2, -1, WIDTH).transpose(1, 2).reshape(weight.shape)


def written(path: Path, architecture: str = "llama", kind: Any = None) -> Path:
    model, words = toy(), json.loads(tokenizer().backend_tokenizer.to_str())
    vocabulary = sorted(words["model"]["vocab"].items(), key=lambda pair: pair[1])
    special = {each["content"] for each in words["added_tokens"] if each["special"]}
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if token in special else 1 for token, _ in vocabulary])
    writer.add_token_merges([" ".join(pair) for pair in words["model"]["merges"]])
    writer.add_eos_token_id(tokenizer().eos_token_id)
    writer.add_bos_token_id(tokenizer().eos_token_id)
    writer.add_chat_template(str(tokenizer().chat_template))
    weights = model.state_dict()

    def add(name: str, weight: torch.Tensor) -> None:
        array = weight.numpy()
        if kind is None or weight.ndim < 2:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)

    add("token_embd.weight", weights["model.embed_tokens.weight"])
    add("output_norm.weight", weights["model.norm.weight"])
    for layer in range(LAYERS):
        for theirs, ours in NAMES.items():
            weight = weights[f"model.layers.{layer}.{ours}.weight"]
            add(f"blk.{layer}.{theirs}.weight", llama_cpp_order(weight) if theirs in ("attn_q", "attn_k") else weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=torch.arange(5, 25)[None]).logits
    return found


def test_a_file_becomes_the_model_that_it_was_made_of(tmp_path: Path) -> None:
    out = import_gguf(written(tmp_path / "toy.gguf"), tmp_path / "out")
    loaded = load_checkpoint(out)
    assert torch.allclose(logits(loaded.model), logits(toy()), atol=1e-5)
    assert loaded.model.dtype == torch.float32 and not hasattr(loaded.model.config, "quantization_config")
    talk = (Message("user", "find a red lamp"),)
    ours = ChatFormat(tokenizer())
    assert ChatFormat(loaded.tokenizer).prompt_ids(talk) == ours.prompt_ids(talk)
    assert ChatFormat(loaded.tokenizer).stop_id == ours.stop_id
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4000])


def unknown_kind(path: Path) -> None:
    """Set the first tensor's type to 999. The type follows the tensor's name, its number of dimensions, and two
    sizes."""
    content = bytearray(path.read_bytes())
    at = content.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
    content[at : at + 4] = (999).to_bytes(4, "little")
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut, "cannot be read"),
        (unknown_kind, "is not a valid GGMLQuantizationType"),
        (lambda path: path.write_bytes(b"PK\x03\x04 not this"), "cannot be read"),
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: written(path, architecture="rwkv7"), "rwkv7"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, damage: Any, reason: str) -> None:
    file = written(tmp_path / "toy.gguf")
    damage(file)
    with pytest.raises(UserError) as refused:
        import_gguf(file, tmp_path / "out")
    told = str(refused.value)
    assert str(file) in told and reason in told and "\n" not in told
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "toy.gguf") == []

"""Adapters: what training changes and what it leaves alone, and what is saved and loaded."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from tiny import HIDDEN, advantage_rows, logprobs, make_model, make_tokenizer, pairs, token_rows, weights
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedTokenizerFast

from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, merge, save_checkpoint, with_adapter
from treeagent.agent.value_head import ValueHead
from treeagent.generators.config import LoraConfig
from treeagent.learners import common
from treeagent.learners.common import Hooks, TrainResult
from treeagent.learners.config import DPOConfig, GRPOConfig, SFTConfig
from treeagent.learners.dpo import train_dpo
from treeagent.learners.grpo import train_grpo
from treeagent.learners.sft import train_sft
from treeagent.types import UserError

LORA = LoraConfig(rank=2)
Learn = Callable[[PeftModel, PreTrainedTokenizerFast, Hooks, bool], TrainResult]


def adapted(seed: int = 0) -> PeftModel:
    """The tiny model with an adapter on all layers."""
    model = with_adapter(make_model(), LORA, seed)
    assert isinstance(model, PeftModel)
    return model


def base_weights(model: PeftModel) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for name, each in model.named_parameters() if "lora_" not in name])


def adapter_weights(model: PeftModel) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for name, each in model.named_parameters() if "lora_" in name])


def rft(model: PeftModel, tokenizer: PreTrainedTokenizerFast, hooks: Hooks, recompute: bool = False) -> TrainResult:
    config = SFTConfig(max_steps=5, batch_size=4, save_every=2, log_every=1, gradient_checkpointing=recompute)
    return train_sft(model, tokenizer, token_rows(10), config, head=ValueHead(HIDDEN), **hooks)


def dpo(model: PeftModel, tokenizer: PreTrainedTokenizerFast, hooks: Hooks, recompute: bool = False) -> TrainResult:
    config = DPOConfig(max_steps=5, batch_size=4, save_every=2, log_every=1, learning_rate=1e-2)
    config = replace(config, gradient_checkpointing=recompute)
    return train_dpo(model, tokenizer, pairs(make_model(), 10), config, **hooks)


def grpo(model: PeftModel, tokenizer: PreTrainedTokenizerFast, hooks: Hooks, recompute: bool = False) -> TrainResult:
    return packed(model, tokenizer, hooks, recompute, pack=False)


def packed(
    model: PeftModel, tokenizer: PreTrainedTokenizerFast, hooks: Hooks, recompute: bool = False, *, pack: bool = True
) -> TrainResult:
    config = GRPOConfig(max_steps=5, batch_size=4, save_every=2, log_every=1, learning_rate=1e-2)
    config = replace(config, packed=pack, gradient_checkpointing=recompute)
    return train_grpo(model, tokenizer, advantage_rows(make_model(), 10, stale=0.3), config, **hooks)


LEARNERS = pytest.mark.parametrize("learn", [rft, dpo, grpo, packed])


def test_in_bfloat16_an_adapter_learns_the_same_without_copies_of_its_inputs(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, rows = SFTConfig(max_steps=4, batch_size=4, precision="bfloat16", validate_every=2), token_rows(10)

    def trained() -> tuple[torch.Tensor, set[torch.dtype]]:
        model, seen = adapted(), set[torch.dtype]()
        for name, each in model.named_parameters():
            if "lora_" not in name:
                each.data = each.data.to(torch.bfloat16)
        for name, module in model.named_modules():
            if name.endswith("down_proj.lora_A.default"):
                module.register_forward_pre_hook(lambda _, given: seen.add(given[0].dtype) if model.training else None)
        train_sft(model, tokenizer, rows, config, validate=lambda: logprobs(model, rows[0].token_ids).sum().item())
        return adapter_weights(model), seen

    weights, seen = trained()
    assert seen == {torch.bfloat16}
    monkeypatch.setattr(common, "disable_input_dtype_casting", lambda model: nullcontext())
    expected, seen = trained()
    assert seen == {torch.float32} and torch.equal(weights, expected)


def test_a_new_adapter_changes_nothing_and_its_seed_is_its_own(model: LlamaForCausalLM) -> None:
    row = token_rows(1)[0].token_ids
    before, state = logprobs(model, row), torch.get_rng_state()
    wrapped = adapted()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(logprobs(wrapped, row), before)
    assert torch.equal(adapter_weights(wrapped), adapter_weights(adapted()))
    assert not torch.equal(adapter_weights(wrapped), adapter_weights(adapted(seed=1)))
    assert with_adapter(model, None, 0) is model
    assert with_adapter(wrapped, LORA, 1) is wrapped


@LEARNERS
def test_the_adapter_alone_is_trained_and_goes_on_in_a_further_round(
    learn: Learn, tokenizer: PreTrainedTokenizerFast
) -> None:
    model = adapted()
    base, rounds = base_weights(model), [adapter_weights(model)]
    for _ in range(2):
        learn(model, tokenizer, {}, False)
        rounds.append(adapter_weights(model))
    assert torch.equal(base_weights(model), base)
    assert not torch.equal(rounds[1], rounds[0]) and not torch.equal(rounds[2], rounds[1])
    assert list(model.peft_config) == ["default"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two checkpoints: a base model, and an adapter on it with its own value head."""
    checkpoints = tmp_path / "run" / "checkpoints"
    save_checkpoint(Checkpoint(make_model(), make_tokenizer()), checkpoints / "base")
    policy = replace(load_checkpoint(checkpoints / "base"), head=ValueHead(HIDDEN))
    policy = replace(policy, model=with_adapter(policy.model, LORA, 0))
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(0.02)
    save_checkpoint(policy, checkpoints / "dpo")
    return tmp_path / "run"


def test_a_checkpoint_holds_the_adapter_alone_and_a_moved_run_finds_its_base(run: Path) -> None:
    saved = load_checkpoint(run / "checkpoints" / "dpo")
    names = {path.name for path in (run / "checkpoints" / "dpo").iterdir()}
    assert names == {
        "adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json", "value_head"
    }  # fmt: skip
    moved = run.with_name("moved")
    run.rename(moved)
    loaded = load_checkpoint(moved / "checkpoints" / "dpo")
    assert isinstance(loaded.model, PeftModel) and loaded.head is not None
    assert torch.equal(weights(loaded.model), weights(saved.model))
    assert torch.equal(base_weights(loaded.model), weights(make_model()))
    trained = {name for name, each in loaded.model.named_parameters() if each.requires_grad}
    assert trained == {name for name, _ in loaded.model.named_parameters() if "lora_" in name}
    save_checkpoint(loaded, moved / "checkpoints" / "round-2")  # the adapter still refers to the same base
    config = json.loads((moved / "checkpoints" / "round-2" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "../base"


def test_a_merged_checkpoint_is_a_stock_model_of_the_same_outputs(run: Path) -> None:
    policy, out = load_checkpoint(run / "checkpoints" / "dpo"), run / "checkpoints" / "merged"
    merge(run / "checkpoints" / "dpo", out)
    stock, row = AutoModelForCausalLM.from_pretrained(out), token_rows(1)[0].token_ids
    assert stock.config.architectures == ["LlamaForCausalLM"]
    assert torch.allclose(logprobs(stock, row), logprobs(policy.model, row), atol=1e-5)
    assert not torch.allclose(logprobs(stock, row), logprobs(make_model(), row), atol=1e-2)
    in_memory = load_checkpoint(run / "checkpoints" / "dpo", merged=True).model
    assert not isinstance(in_memory, PeftModel) and torch.equal(weights(in_memory), weights(stock))
    assert policy.head is not None
    assert torch.equal(weights(ValueHead.load(out)), weights(policy.head))
    with pytest.raises(UserError, match="holds no adapter"):
        merge(out, run / "again")
    with pytest.raises(UserError, match="exists: choose a new folder"):
        merge(run / "checkpoints" / "dpo", out)

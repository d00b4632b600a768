"""Distillation against the formula, computed by plain forward passes. What all learners share is in test_training."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tiny import logprobs, make_experts, make_model, make_unpackable, policy_rows
from torch import nn
from transformers import (
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from treeagent.learners.config import DistilConfig
from treeagent.learners.sft import train_distil
from treeagent.types import NothingToLearn
from treeagent.views.policy import Candidate, PolicyRow

ONE_STEP = DistilConfig(max_steps=1, batch_size=8, log_every=1)


def crossed(model: nn.Module, rows: Sequence[PolicyRow], temperature: float = 1.0) -> tuple[float, float]:
    """-Σ_s Σ_a π'(a|s) log π(a|s) in nats, and Σ_s Σ_a π'(a|s) |a| in tokens."""
    total = length = 0.0
    for row in rows:
        for each in row.candidates:
            own = logprobs(model, (*row.prompt_ids, *each.token_ids), temperature)[len(row.prompt_ids) - 1 :]
            total -= each.target * own.sum().item()
            length += each.target * len(each.token_ids)
    return total, length


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("make", [make_model, make_experts, make_unpackable], ids=["packed", "experts", "padded"])
def test_loss_is_the_cross_entropy_per_token(
    make: Callable[[], PreTrainedModel], tokenizer: PreTrainedTokenizerFast, temperature: float
) -> None:
    model, rows = make(), policy_rows(8)
    total, length = crossed(model, rows, temperature)
    entropy = -sum(each.target * math.log(each.target) for row in rows for each in row.candidates if each.target)
    result = train_distil(model, tokenizer, rows, ONE_STEP, temperature=temperature)
    assert result.metrics["loss"] == pytest.approx(total / length, rel=1e-5)
    assert result.metrics["kl"] == pytest.approx((total - entropy) / 8, rel=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_sampled_policy_becomes_the_target(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, temperature: float
) -> None:
    """Two candidates of one token with the targets 3/4 and 1/4."""
    rows = [PolicyRow("task", (5, 6), (Candidate((7,), (0.0,), 0.75), Candidate((8,), (0.0,), 0.25)))]
    config = replace(ONE_STEP, max_steps=60, learning_rate=1e-2)
    result = train_distil(model, tokenizer, rows, config, temperature=temperature)
    assert result.metrics["kl"] < 0.02
    assert logprobs(model, (5, 6, 7), temperature)[-1].exp().item() == pytest.approx(0.75, abs=0.05)


def test_no_states_are_refused(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(NothingToLearn, match=r"update\.targets\.min_return"):
        train_distil(model, tokenizer, [], ONE_STEP)

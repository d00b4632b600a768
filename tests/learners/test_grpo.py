import math
from dataclasses import replace

import pytest
import torch
from tiny import advantage_rows, logprobs, weights
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from treeagent.learners.config import GRPOConfig, PolicyLoss
from treeagent.learners.grpo import train_grpo
from treeagent.views.advantages import AdvantageRow

ONE_STEP = GRPOConfig(max_steps=1, batch_size=8, log_every=1)
LOSSES: tuple[PolicyLoss, ...] = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "luspo")


def ratios(model: LlamaForCausalLM, row: AdvantageRow) -> tuple[torch.Tensor, torch.Tensor]:
    """Importance ratios and advantages of the trained tokens of a row."""
    mask = torch.tensor(row.mask)
    policy = logprobs(model, (*row.prompt_ids, *row.completion_ids))[len(row.prompt_ids) - 1 :]
    return (policy - torch.tensor(row.logprobs)).exp()[mask], torch.tensor(row.advantages)[mask]


def surrogate(ratio: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """PPO-clip with clip-higher, per token."""
    return -torch.min(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_zero_advantages_leave_the_weights_exactly_alone(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, loss_type: PolicyLoss
) -> None:
    before = weights(model)
    config = replace(ONE_STEP, loss_type=loss_type, epsilon_high=None, max_steps=3)
    train_grpo(model, tokenizer, advantage_rows(model, 12, advantage=0.0, stale=0.3), config)
    assert torch.equal(weights(model), before)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_whatever_stands_at_masked_tokens_changes_nothing(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, loss_type: PolicyLoss
) -> None:
    rows = advantage_rows(model, 8, stale=0.3)
    spoilt = [
        replace(
            row,
            advantages=tuple(a if kept else 1e6 for a, kept in zip(row.advantages, row.mask, strict=True)),
            logprobs=tuple(b if kept else math.nan for b, kept in zip(row.logprobs, row.mask, strict=True)),
        )
        for row in rows
    ]
    config = replace(ONE_STEP, loss_type=loss_type, epsilon_high=None, beta=0.1, anchor=0.1)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train_grpo(model, tokenizer, rows, config)
    clean = weights(model)
    model.load_state_dict(start)
    train_grpo(model, tokenizer, spoilt, config)
    assert torch.equal(weights(model), clean)


def test_cispo_weighs_the_likelihood_by_the_capped_ratio(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = advantage_rows(model, 8, stale=0.5)
    terms = []
    for row, (ratio, advantage) in ((row, ratios(model, row)) for row in rows):
        likelihood = ratio.log() + torch.tensor(row.logprobs)[torch.tensor(row.mask)]
        terms.append(-ratio.clamp(max=1.1) * advantage * likelihood)
    metrics = train_grpo(model, tokenizer, rows, replace(ONE_STEP, loss_type="cispo", epsilon_high=1.1)).metrics
    assert metrics["loss"] == pytest.approx(torch.cat(terms).mean().item(), abs=1e-4)
    assert metrics["cispo_clip_ratio"] > 0


def test_kl_is_measured_against_behaviour_and_anchor_added(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = advantage_rows(model, 8, stale=0.5)
    both = [ratios(model, row) for row in rows]
    ratio, advantage = torch.cat([r for r, _ in both]), torch.cat([a for _, a in both])
    kl = ratio * (1 / ratio + ratio.log() - 1)
    policy = torch.cat(
        [logprobs(model, (*r.prompt_ids, *r.completion_ids))[len(r.prompt_ids) - 1 :][list(r.mask)] for r in rows]
    )
    anchor = -policy[advantage > 0].mean()
    metrics = train_grpo(model, tokenizer, rows, replace(ONE_STEP, beta=0.2, anchor=0.3)).metrics
    assert metrics["kl"] == pytest.approx(kl.mean().item(), abs=1e-5)
    assert metrics["anchor"] == pytest.approx(anchor.item(), abs=1e-5)
    expected = surrogate(ratio, advantage).mean() + 0.2 * kl.mean() + 0.3 * anchor
    assert metrics["loss"] == pytest.approx(expected.item(), abs=1e-5)

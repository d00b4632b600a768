from dataclasses import replace

import pytest
import torch
from tiny import HIDDEN, logprobs, token_rows, weights
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from treeagent.agent.value_head import ValueHead
from treeagent.learners.config import SFTConfig
from treeagent.learners.sft import train_sft

ONE_STEP = SFTConfig(max_steps=1, batch_size=8, log_every=1)


def test_loss_is_the_mean_over_masked_tokens_only(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = token_rows(8)
    kept = [logprobs(model, row.token_ids)[torch.tensor(row.mask[1:])] for row in rows]
    result = train_sft(model, tokenizer, rows, ONE_STEP)
    assert result.metrics["loss"] == pytest.approx(-torch.cat(kept).mean().item(), rel=1e-5)


def test_value_loss_trains_head_and_policy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [replace(row, mask=(False,) * len(row.mask)) for row in token_rows(8)]
    head = ValueHead(HIDDEN)
    before = weights(model)
    seen: list[float] = []
    train_sft(
        model,
        tokenizer,
        rows,
        replace(ONE_STEP, max_steps=40, learning_rate=5e-3),
        head=head,
        on_metrics=lambda row: seen.append(row["value_loss"]),
    )
    assert seen[0] == pytest.approx(0.6931, abs=1e-3)  # V starts at 1/2
    assert seen[-1] < 0.1
    assert not torch.equal(weights(model), before)
    assert not hasattr(model, "value_head")

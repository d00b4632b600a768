"""The likelihood of rows under a model, and the choice of rows for it to learn again."""

import random
from collections import Counter

import pytest
from tiny import logprobs, tokens
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from treeagent.learners.config import SFTConfig
from treeagent.learners.sft import hard_rows, train_sft
from treeagent.views.tokens import TokenRow


def test_rows_are_drawn_by_how_likely_they_are_got_wrong(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    shuffler = random.Random(0)
    rows = [TokenRow(str(number), tokens(shuffler, 8), (False,) * 5 + (True,) * 3) for number in range(4)]
    train_sft(model, tokenizer, rows[:2], SFTConfig(learning_rate=5e-3, max_steps=30))  # the model learns only these
    wrong = [1 - logprobs(model, row.token_ids)[-3:].min().exp().item() for row in rows]
    assert max(wrong[:2]) < 0.5 < 0.9 < min(wrong[2:])
    count = 8000
    drawn = Counter(row.task_id for row in hard_rows(model, rows, count, seed=1))
    for row, share in zip(rows, wrong, strict=True):
        assert drawn[row.task_id] / count == pytest.approx(share / sum(wrong), abs=0.02)
    assert hard_rows(model, rows, 5, seed=1) == hard_rows(model, rows, 5, seed=1)

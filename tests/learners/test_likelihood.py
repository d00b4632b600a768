"""The likelihood of rows under a model, and the choice of rows for it to learn again."""

import random
from collections import Counter

import pytest
from tiny import logprobs, tokens
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from treeagent.learners.config import SFTConfig
from treeagent.learners.sft import hard_rows, token_logprobs, train_sft
from treeagent.views.tokens import TokenRow


def test_log_probabilities_are_those_of_each_pair_alone(model: LlamaForCausalLM) -> None:
    shuffler = random.Random(0)
    pairs = [(tokens(shuffler, shuffler.randint(1, 9)), tokens(shuffler, shuffler.randint(1, 5))) for _ in range(40)]
    for temperature in (1.0, 0.5):
        found = token_logprobs(model, pairs, temperature)
        for (prompt, said), told in zip(pairs, found, strict=True):
            alone = logprobs(model, prompt + said, temperature)[-len(said) :]
            assert told == pytest.approx(alone.tolist(), abs=1e-5)


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

import math
import random
from dataclasses import replace

import pytest
import torch
from tiny import logprobs, pairs, tokens
from torch.nn.functional import logsigmoid
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from treeagent.learners.config import DPOConfig
from treeagent.learners.dpo import train_dpo
from treeagent.types import NothingToLearn
from treeagent.views.pairs import Continuation, PreferencePair, self_pairs
from treeagent.views.tokens import TokenRow

SIGMOID = DPOConfig(max_steps=1, batch_size=8, log_every=1, loss_type=("sigmoid",), loss_weights=(1.0,))


def trajectory_pairs(model: PreTrainedModel, count: int, shift: float = 0.0) -> list[PreferencePair]:
    """Pairs whose actions have observations between and after them. The stored log-probabilities of actions are the
    model's own, with a sum that is lower by ``shift`` for the chosen ones. Those of observations are meaningless."""
    shuffler = random.Random(3)

    def side(context: tuple[int, ...], lowered: float) -> Continuation:
        parts = [(kept, shuffler.randrange(1, 5)) for kept in (True, False, True, False)]
        mask = tuple(kept for kept, length in parts for _ in range(length))
        ids = tokens(shuffler, len(mask))
        own = logprobs(model, (*context, *ids))[len(context) - 1 :].tolist()
        stored = [logprob - lowered / sum(mask) if kept else -7.0 for logprob, kept in zip(own, mask, strict=True)]
        return Continuation("a\nb", ids, mask, tuple(stored))

    contexts = [tokens(shuffler, shuffler.randrange(3, 12)) for _ in range(count)]
    return [
        PreferencePair(f"task-{number}", context, side(context, shift), side(context, 0.0), 1.0)
        for number, context in enumerate(contexts)
    ]


@pytest.mark.parametrize("shift", [0.0, 4.0])
def test_observations_count_neither_in_the_policy_s_nor_in_the_reference_s_sum(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, shift: float
) -> None:
    result = train_dpo(model, tokenizer, trajectory_pairs(model, 8, shift), replace(SIGMOID, beta=0.25))
    assert result.metrics["rewards/margins"] == pytest.approx(shift / 4, abs=1e-4)
    assert result.metrics["loss"] == pytest.approx(math.log1p(math.exp(-shift / 4)), abs=1e-5)


def test_terms_by_length_count_sampled_tokens(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """The anchor is a mean over chosen tokens. The normalised sigmoid uses each side's margin per token."""
    stored = trajectory_pairs(model, 8, 4.0)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    counts = torch.tensor([float(sum(pair.chosen.mask)) for pair in stored])
    anchor = replace(SIGMOID, loss_type=("sft",))
    likelihood = (sum(pair.chosen.logprob for pair in stored) + 4.0 * len(stored)) / counts.sum().item()
    assert train_dpo(model, tokenizer, stored, anchor).metrics["loss"] == pytest.approx(-likelihood, rel=1e-5)
    model.load_state_dict(start)
    norm = replace(SIGMOID, loss_type=("sigmoid_norm",), beta=2.0)
    expected = -logsigmoid(2.0 * 4.0 / counts).mean().item()
    assert train_dpo(model, tokenizer, stored, norm).metrics["loss"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_reference_equal_to_the_policy_gives_margin_zero_and_loss_log_two(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, temperature: float
) -> None:
    stored = pairs(model, 8, temperature=temperature)
    result = train_dpo(model, tokenizer, stored, SIGMOID, temperature=temperature)
    assert result.metrics["rewards/margins"] == pytest.approx(0.0, abs=1e-5)
    assert result.metrics["loss"] == pytest.approx(math.log(2), abs=1e-6)


def test_a_row_paired_with_itself_teaches_only_its_likelihood(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    ids = tokens(random.Random(5), 9)
    [pair] = self_pairs([TokenRow("task", ids, (*[False] * 4, *[True] * 5))])
    with pytest.raises(NothingToLearn):  # it is no preference
        train_dpo(model, tokenizer, [pair], SIGMOID)
    pair = replace(pair, margin=1.0)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    before, learnt = logprobs(model, ids)[3:].sum().item(), []
    for terms in ("sft",), ("sigmoid", "sft"):
        train_dpo(model, tokenizer, [pair], replace(SIGMOID, loss_type=terms, loss_weights=(1.0,) * len(terms)))
        learnt.append(logprobs(model, ids)[3:].sum().item())
        model.load_state_dict(start)
    assert learnt[0] > before
    assert learnt[1] == pytest.approx(learnt[0], abs=1e-4)

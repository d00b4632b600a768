"""Scores of given continuations, all in one pass, against the plain forward pass."""

from collections.abc import Callable

import pytest
import torch
from test_local import PROMPTS, SEEDS, draw, ids
from toy_llama import make_grouped_model, plain_logprobs, shared_model
from transformers import PreTrainedModel

from treeagent.generators import local
from treeagent.generators.base import Sample, prefix_trie, samples_from_trie
from treeagent.generators.local import LocalGenerator

SHARED = ids(6, 3, 60)
CANDIDATES: list[list[tuple[int, ...]]] = [
    [(*SHARED, 7), (*SHARED, 7, 9), (*SHARED, 8, 9), (11,), (*SHARED[:1], 12, 13)],
    [(5,)],
    [],
    [(9, 8, 7, 6, 5), (9, 8, 7, 6, 5), (9, 8)],
]
"""Some share beginnings, one is the beginning of another, and one prompt has no candidates."""


def plain(model: PreTrainedModel, temperature: float = 1.0) -> list[list[list[float]]]:
    return [
        [plain_logprobs(model, prompt, each, temperature).tolist() for each in asked]
        for prompt, asked in zip(PROMPTS, CANDIDATES, strict=True)
    ]


def test_each_beginning_is_named_once() -> None:
    """By hand: 1 is followed by 2 and 3, and only the longest candidate goes on after 1, 2."""
    assert prefix_trie([(1, 2), (1, 3), (1, 2, 4), (1, 2)]) == {(): [1], (1,): [2, 3], (1, 2): [4]}
    assert prefix_trie([]) == {(): []}
    told = {(): {1: -0.5}, (1,): {2: -1.0, 3: -2.0}}
    assert samples_from_trie([(1, 3), (1, 2)], told) == [Sample((1, 3), (-0.5, -2.0)), Sample((1, 2), (-0.5, -1.0))]


@pytest.mark.parametrize("make", [shared_model, make_grouped_model])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_scores_are_the_plain_forward_passs(make: Callable[[], PreTrainedModel], temperature: float) -> None:
    """To 1e-5, also after prefixes that are in the cache."""
    model = make()
    prompts = [tuple(token % 59 + 5 for token in prompt) for prompt in PROMPTS]
    generator = LocalGenerator(model)
    for _ in range(2):
        scored = generator.score(prompts, CANDIDATES, temperature)
        for prompt, asked, samples in zip(prompts, CANDIDATES, scored, strict=True):
            assert [sample.token_ids for sample in samples] == asked
            for sample in samples:
                expected = plain_logprobs(model, prompt, sample.token_ids, temperature or 1.0).tolist()
                assert sample.logprobs == pytest.approx(expected, abs=1e-5)


def test_a_score_is_the_log_probability_that_a_sample_has() -> None:
    """At the sampling temperature, so that sampled and scored candidates are comparable."""
    generator = LocalGenerator(shared_model())
    drawn = draw(generator, PROMPTS, 4, SEEDS, temperature=0.7)
    scored = generator.score(PROMPTS, [[each.token_ids for each in samples] for samples in drawn], 0.7)
    for one, two in zip(drawn, scored, strict=True):
        for sampled, given in zip(one, two, strict=True):
            assert sampled.logprobs == pytest.approx(given.logprobs, abs=1e-5)


def test_every_beginning_goes_through_the_model_once() -> None:
    generator = LocalGenerator(shared_model())
    generator.score(PROMPTS, CANDIDATES)
    # By hand: three shared tokens, two that follow them, and one that follows the first; none; none; four of the long
    # candidate.
    fed = [{each[:end] for each in asked for end in range(1, len(each))} for asked in CANDIDATES]
    assert [len(beginning) for beginning in fed] == [6, 0, 0, 4]
    assert generator.usage.encoded_tokens == sum(map(len, PROMPTS)) + 10
    assert generator.usage.generated_tokens == 0


@pytest.mark.parametrize("most", [1, 2**28])
def test_prompts_that_are_split_over_passes_score_the_same(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_SCORED_LOGITS", most)
    scored = LocalGenerator(shared_model()).score(PROMPTS, CANDIDATES)
    for samples, expected in zip(scored, plain(shared_model()), strict=True):
        for sample, logprobs in zip(samples, expected, strict=True):
            assert sample.logprobs == pytest.approx(logprobs, abs=1e-5)


def test_every_probability_of_a_step_is_scored() -> None:
    """The scores of all tokens as candidates of length 1 sum to 1."""
    model = shared_model()
    vocabulary = model.config.vocab_size
    [scored] = LocalGenerator(model).score(PROMPTS[:1], [[(token,) for token in range(vocabulary)]])
    assert torch.tensor([sample.logprobs[0] for sample in scored]).exp().sum().item() == pytest.approx(1, abs=1e-5)
    assert LocalGenerator(model).score([], []) == []

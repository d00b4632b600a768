"""Scores of given continuations, all in one pass, against the plain forward pass."""

from collections.abc import Callable

import pytest
from test_local import PROMPTS, ids
from toy_llama import make_grouped_model, plain_logprobs, shared_model
from transformers import PreTrainedModel

from treeagent.generators.local import LocalGenerator

SHARED = ids(6, 3, 60)
CANDIDATES: list[list[tuple[int, ...]]] = [
    [(*SHARED, 7), (*SHARED, 7, 9), (*SHARED, 8, 9), (11,), (*SHARED[:1], 12, 13)],
    [(5,)],
    [],
    [(9, 8, 7, 6, 5), (9, 8, 7, 6, 5), (9, 8)],
]
"""Some share beginnings, one is the beginning of another, and one prompt has no candidates."""


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

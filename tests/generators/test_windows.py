"""Models with sliding-window layers are sampled, scored and evaluated as transformers itself runs them."""

import random

import pytest
import torch
from families import FULL, SOME_WINDOWED, UNFIT, VOCABULARY, WINDOWED, made, narrowed
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile
from toy_llama import plain_logprobs
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import use_gqa_in_sdpa

from treeagent.generators.base import Sample, SampleRequest
from treeagent.generators.local import LocalGenerator
from treeagent.types import UserError


def ids(seed: int, length: int) -> tuple[int, ...]:
    shuffler = random.Random(seed)
    return tuple(shuffler.randrange(3, VOCABULARY - 1) for _ in range(length))


STEM = ids(1, 24)
PROMPTS = [STEM, (*STEM, *ids(2, 3)), (*STEM[:20], *ids(3, 11)), ids(4, 5)]
"""Three times the window and more, branching inside and outside of it; and one prompt that fits into it."""


def draw(
    generator: LocalGenerator, prompts: list[tuple[int, ...]], count: int = 3, temperature: float = 1.0
) -> list[list[Sample]]:
    return generator.sample(
        SampleRequest(prompts, count, range(len(prompts)), stop_id=-1, max_new_tokens=10, temperature=temperature)
    )


def assert_plain(model: PreTrainedModel, prompts: list[tuple[int, ...]], drawn: list[list[Sample]]) -> None:
    for prompt, samples in zip(prompts, drawn, strict=True):
        for sample in samples:
            expected = plain_logprobs(model, prompt, sample.token_ids)
            torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", SOME_WINDOWED)
def test_what_lies_beyond_a_window_is_not_seen(family: str) -> None:
    model = made(WINDOWED[family])
    with narrowed(model, 100), torch.no_grad():
        wide = model(torch.tensor([STEM])).logits
    with torch.no_grad():
        apart = (model(torch.tensor([STEM])).logits - wide)[0, -1].abs().max()
    assert apart > 0.05, "the window decides nothing here"
    generator = LocalGenerator(model)
    drawn = draw(generator, PROMPTS)
    assert_plain(model, PROMPTS, drawn)
    longer = [(*prompt, *samples[1].token_ids, *ids(7, 4)) for prompt, samples in zip(PROMPTS, drawn, strict=True)]
    before = generator.usage.cached_tokens
    assert_plain(model, longer, draw(generator, longer))
    assert generator.usage.cached_tokens - before > sum(map(len, PROMPTS))


@pytest.mark.parametrize("family", UNFIT)
def test_models_that_no_mask_tells_what_to_see_are_refused(family: str) -> None:
    make, sentence = UNFIT[family]
    with pytest.raises(UserError, match=sentence) as refused:
        LocalGenerator(made(make))
    assert "with policy.generator=vllm, or take another model to train" in str(refused.value)


@pytest.mark.parametrize("family", FULL)
def test_sampling_over_shared_prefixes_is_the_plain_forward_pass(family: str) -> None:
    model = made(FULL[family])
    generator = LocalGenerator(model)
    drawn = draw(generator, PROMPTS)
    assert_plain(model, PROMPTS, drawn)
    longer = [(*prompt, *samples[1].token_ids, *ids(7, 4)) for prompt, samples in zip(PROMPTS, drawn, strict=True)]
    before = generator.usage.cached_tokens
    assert_plain(model, longer, draw(generator, longer))
    assert generator.usage.cached_tokens - before > sum(map(len, PROMPTS))


@pytest.mark.skipif(torch.cuda.is_available(), reason="on CUDA a mask and grouped heads together have no fast kernel")
def test_grouped_keys_are_not_copied_on_a_cpu() -> None:
    query, keys = torch.zeros(1, 4, 3, 8), torch.zeros(1, 2, 5, 8)
    assert use_gqa_in_sdpa(torch.zeros(1, 1, 3, 5), keys, keys)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        scaled_dot_product_attention(query, keys, keys, attn_mask=torch.zeros(1, 1, 3, 5), enable_gqa=True)
    assert any("flash_attention" in event.key for event in profiled.key_averages())

"""Sampling with shared prefixes against the plain forward pass, and which tokens go through the model."""

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import psutil
import pytest
import torch
from toy_llama import make_grouped_model, plain_hidden, plain_logprobs, shared_model, tokenizer
from transformers import PreTrainedModel

from treeagent.generators.base import Pause, Sample, SampleRequest, Usage
from treeagent.generators.local import LocalGenerator

NEVER = -1
"""A stop id that the model never samples."""


def ids(seed: int, length: int, vocabulary: int = 200) -> tuple[int, ...]:
    shuffler = random.Random(seed)
    return tuple(shuffler.randrange(5, vocabulary) for _ in range(length))


PROMPTS = [ids(1, 9), ids(2, 23), ids(3, 1), ids(4, 14)]
SEEDS = [10, 11, 12, 13]


def draw(
    generator: LocalGenerator,
    prompts: Sequence[tuple[int, ...]],
    count: int = 3,
    seeds: Sequence[int] | None = None,
    *,
    stop_id: int = NEVER,
    new: int | Sequence[int] = 6,
    temperature: float = 1.0,
    pauses: Sequence[Pause | None] = (),
) -> list[list[Sample]]:
    return generator.sample(
        SampleRequest(
            prompts,
            count,
            range(len(prompts)) if seeds is None else seeds,
            stop_id=stop_id,
            max_new_tokens=new,
            temperature=temperature,
            pauses=pauses,
        )
    )


def assert_plain(
    model: PreTrainedModel,
    prompts: Sequence[tuple[int, ...]],
    drawn: Sequence[Sequence[Sample]],
    temperature: float = 1.0,
) -> None:
    """Assert that every reported log-probability is that of the plain forward pass, and that the model is far from
    uniform."""
    for prompt, samples in zip(prompts, drawn, strict=True):
        for sample in samples:
            assert len(sample.token_ids) == len(sample.logprobs)
            expected = plain_logprobs(model, prompt, sample.token_ids, temperature)
            torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=1e-4, rtol=0)


def same(one: Sequence[Sample], two: Sequence[Sample]) -> None:
    assert [sample.token_ids for sample in one] == [sample.token_ids for sample in two]
    for left, right in zip(one, two, strict=True):
        assert left.logprobs == pytest.approx(right.logprobs, abs=1e-4)


@pytest.mark.parametrize("make", [shared_model, make_grouped_model])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
def test_log_probabilities_are_the_models_own(make: Callable[[], PreTrainedModel], temperature: float) -> None:
    model = make()
    generator = LocalGenerator(model)
    prompts = [tuple(token % 59 + 5 for token in prompt) for prompt in PROMPTS]
    drawn = draw(generator, prompts, 4, SEEDS, temperature=temperature)
    assert [len(samples) for samples in drawn] == [4] * 4
    assert all(len(sample.token_ids) == 6 for samples in drawn for sample in samples)
    assert len({sample.token_ids for samples in drawn for sample in samples}) == 16
    assert_plain(model, prompts, drawn, temperature)
    longer = [(*prompt, *samples[1].token_ids, 7, 8) for prompt, samples in zip(prompts, drawn, strict=True)]
    before = replace(generator.usage)
    assert_plain(model, longer, draw(generator, longer, 2, SEEDS, temperature=temperature), temperature)
    assert generator.usage.cached_tokens > before.cached_tokens


def test_the_stop_token_ends_a_sample_and_is_kept() -> None:
    model = shared_model()
    free = draw(LocalGenerator(model), PROMPTS, 4, new=12)
    stop = free[1][2].token_ids[5]  # the sixth token of one of the samples
    stopped = draw(LocalGenerator(model), PROMPTS, 4, new=12, stop_id=stop)
    lengths = set()
    for whole, cut in zip(
        [sample for samples in free for sample in samples], [s for samples in stopped for s in samples], strict=True
    ):
        length = whole.token_ids.index(stop) + 1 if stop in whole.token_ids else 12
        assert cut.token_ids == whole.token_ids[:length]
        assert cut.logprobs == pytest.approx(whole.logprobs[:length], abs=1e-5)
        lengths.add(length)
    assert {12} < lengths
    assert_plain(model, PROMPTS, stopped)


def test_a_sample_ends_at_its_pause() -> None:
    """It ends at its second odd token, if its prompt has that pause. Other prompts and draws are unchanged."""
    model = shared_model()
    asked: list[tuple[int, ...]] = []

    def second_odd(ids: tuple[int, ...]) -> bool:
        asked.append(ids)
        return sum(token % 2 for token in ids) == 2

    odd = frozenset(range(1, len(tokenizer()), 2))
    free = draw(LocalGenerator(model), PROMPTS, 4, new=12)
    pauses = [Pause(odd, second_odd), None, Pause(odd, second_odd), Pause(odd, lambda ids: False)]
    generator = LocalGenerator(model)
    paused = draw(generator, PROMPTS, 4, new=12, pauses=pauses)
    lengths = set()
    for place, (whole, cut) in enumerate(zip(free, paused, strict=True)):
        for one, two in zip(whole, cut, strict=True):
            odds = [number for number, token in enumerate(one.token_ids) if token % 2]
            length = odds[1] + 1 if place in (0, 2) and len(odds) > 1 else 12
            assert two.token_ids == one.token_ids[:length]
            assert two.logprobs == pytest.approx(one.logprobs[:length], abs=1e-5)
            lengths.add(length)
    assert len(lengths) > 4
    assert all(ids[-1] in odd and sum(token % 2 for token in ids) <= 2 for ids in asked)
    assert generator.usage.generated_tokens == sum(len(sample.token_ids) for samples in paused for sample in samples)
    for prompt, sample in zip(PROMPTS, [samples[0] for samples in paused], strict=True):
        before = generator.usage.encoded_tokens
        read = (*prompt, *sample.token_ids)
        torch.testing.assert_close(generator.hidden([read])[0], plain_hidden(model, read), atol=1e-4, rtol=1e-4)
        assert generator.usage.encoded_tokens - before == 1  # its last token, which was sampled but not fed


def test_greedy_is_generates_greedy() -> None:
    model = shared_model()
    drawn = draw(LocalGenerator(model), PROMPTS, 1, temperature=0.0, new=10)
    for prompt, [sample] in zip(PROMPTS, drawn, strict=True):
        batch = torch.tensor([prompt])
        whole = model.generate(  # type: ignore[operator]
            batch, attention_mask=torch.ones_like(batch), do_sample=False, max_new_tokens=10, eos_token_id=None
        )
        assert sample.token_ids == tuple(whole[0, len(prompt) :].tolist())
    assert_plain(model, PROMPTS, drawn)  # at temperature 1


def test_the_draw_depends_on_its_own_seed_alone() -> None:
    model = shared_model()
    together = draw(LocalGenerator(model), PROMPTS, 3, SEEDS)
    for place, (prompt, seed) in enumerate(zip(PROMPTS, SEEDS, strict=True)):
        same(draw(LocalGenerator(model), [prompt], 3, [seed])[0], together[place])
    order = [2, 0, 3, 1]
    shuffled = draw(LocalGenerator(model), [PROMPTS[i] for i in order], 3, [SEEDS[i] for i in order])
    for row, place in enumerate(order):
        same(shuffled[row], together[place])
    in_rows = draw(LocalGenerator(model, max_rows=2), PROMPTS, 3, SEEDS)
    for one, two in zip(in_rows, together, strict=True):
        same(one, two)
    other = draw(LocalGenerator(model), PROMPTS, 3, [seed + 100 for seed in SEEDS])
    assert all(one != two for one, two in zip(other, together, strict=True))


def test_samples_follow_the_distribution() -> None:
    """20,000 draws of one token: each frequency within five standard errors."""
    model, prompt = shared_model(), PROMPTS[1]
    with torch.no_grad():
        expected = torch.softmax(model(torch.tensor([prompt])).logits[0, -1] / 1.5, -1)
    drawn = draw(LocalGenerator(model), [prompt] * 100, 200, new=1, temperature=1.5)
    tokens = torch.tensor([sample.token_ids[0] for samples in drawn for sample in samples])
    seen, count = torch.bincount(tokens, minlength=len(expected)) / len(tokens), len(tokens)
    assert ((seen - expected).abs() <= 5 * (expected * (1 - expected) / count).sqrt() + 2 / count).all()
    assert (expected > 0.01).sum() > 5


def test_no_token_is_read_twice_along_a_path() -> None:
    """A step costs its observation and the last token of the action, which was sampled but not fed."""
    generator = LocalGenerator(shared_model())
    prompt, generated = PROMPTS[1], 0
    draw(generator, [prompt], 3, [0])
    generated += 18
    assert generator.usage == Usage(len(prompt), 0, generated)
    for step in range(4):
        known = len(prompt)
        [samples] = draw(generator, [prompt], 3, [step])
        generated += 18
        observation = ids(50 + step, 3 + step)
        before = replace(generator.usage)
        prompt = (*prompt, *samples[step % 3].token_ids, *observation)
        generator.hidden([prompt])
        assert generator.usage.encoded_tokens - before.encoded_tokens == 1 + len(observation)
        assert generator.usage.cached_tokens - before.cached_tokens == known + 5
        draw(generator, [prompt], 3, [step])
        generated += 18
        assert generator.usage.encoded_tokens - before.encoded_tokens == 1 + len(observation)
    assert generator.usage.generated_tokens == generated


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone keeps freed memory")
def test_memory_of_a_forgotten_cache_returns_to_the_system() -> None:
    generator = LocalGenerator(shared_model())
    draw(generator, [ids(seed, 200) for seed in range(600)], count=1, new=1)
    held, before = generator.cache.bytes, psutil.Process().memory_info().rss
    generator.forget()
    assert held > 40 << 20
    assert before - psutil.Process().memory_info().rss > held / 2

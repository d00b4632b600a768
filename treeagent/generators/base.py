"""The interface of a language model: it takes prompts as token ids, and returns sampled token ids with their
log-probabilities: ``local`` (transformers in this process), ``vllm`` (its engine) or ``remote`` (a server).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

from treeagent.threads import in_thread
from treeagent.types import CONTEXT_FULL

if TYPE_CHECKING:
    from treeagent.generators.structured import Form  # imports transformers

Answer = TypeVar("Answer")
Ids = tuple[int, ...]
"""Token ids of a prompt or of its continuation."""
_ROUNDING = 1e-3
"""By how much a log-probability may exceed 0, in nats."""


@dataclass(slots=True)
class Usage:
    """Tokens that went through a model, which every generator counts."""

    encoded_tokens: int = 0
    """Prompt tokens fed to the model."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    generated_tokens: int = 0
    failed_requests: int = 0
    """Requests to a server that still failed after the last retry."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled continuation of a prompt."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probability of each token in nats, under the distribution that it was drawn from."""
    forced: tuple[int, ...] = ()
    """As for ``Action``."""


def checked_sample(token_ids: Sequence[object], logprobs: Sequence[object], most: int, vocabulary: int) -> Sample:
    """A sample as an engine or a server reports it, of at most ``most`` tokens of the tokenizer's ``vocabulary``; a
    ValueError if it cannot be true."""
    if not 0 < len(token_ids) <= most or len(token_ids) != len(logprobs):
        raise ValueError(f"{len(token_ids)} token ids, {len(logprobs)} log-probabilities, at most {most} asked for")
    ids = tuple(each for each in token_ids if type(each) is int and 0 <= each < vocabulary)
    if len(ids) < len(token_ids):
        raise ValueError(f"a token id that is none of 0 to {vocabulary - 1}")
    return Sample(ids, tuple(map(checked_logprob, logprobs)))


def checked_logprob(value: object) -> float:
    """A log-probability as an engine or a server reports it; a ValueError if it cannot be true."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not -math.inf < value <= _ROUNDING:
        raise ValueError(f"the log-probability {value!r:.40}")
    return float(value)


@dataclass(frozen=True, slots=True)
class Failure:
    """The result for a prompt that could not be answered."""

    reason: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Ends a sample early: after the first token at which ``reached`` holds."""

    tokens: frozenset[int]
    """``reached`` is called only after one of these tokens, because no other token can make it true."""
    reached: Callable[[tuple[int, ...]], bool]
    """Called with all token ids sampled so far."""

    def cut(self, sample: Sample) -> Sample:
        """A sample of an engine or a server, which has no pauses, as if it had been drawn with this one."""
        for index, token in enumerate(sample.token_ids, start=1):
            if token in self.tokens and self.reached(sample.token_ids[:index]):
                return Sample(sample.token_ids[:index], sample.logprobs[:index])
        return sample


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A batch of prompts, with the settings for sampling their continuations."""

    prompts: Sequence[tuple[int, ...]]
    count: int
    """Samples per prompt."""
    seeds: Sequence[int]
    """One seed per prompt. The samples of ``prompts[i]`` depend only on ``seeds[i]``, up to rounding."""
    stop_id: int
    """The token that ends a sample; the sample includes it."""
    max_new_tokens: int | Sequence[int]
    """Most tokens of a sample: one number for all prompts, or one per prompt."""
    temperature: float = 1.0
    """Sampling temperature. 0 takes the likeliest token and reports its log-probability at temperature 1."""
    pauses: Sequence[Pause | None] = ()
    """One per prompt; empty means no pauses."""
    form: "Form | None" = None
    """A grammar for the whole turn. ``local`` reports log-probabilities among all tokens, others among the allowed."""
    turn_prefixes: Sequence[tuple[int, ...]] = ()
    """For each prompt the tokens of an unfinished turn at its end, which count towards ``form``."""
    other_stops: Sequence[int] = ()
    """Further tokens that end a sample, as ``stop_id`` does."""

    def limits(self, context: int) -> list[int]:
        """The most new tokens of each prompt, for a model with a context of ``context`` tokens."""
        most = self.max_new_tokens
        requested = [most] * len(self.prompts) if isinstance(most, int) else most
        return [min(new, context - len(prompt)) for new, prompt in zip(requested, self.prompts, strict=True)]

    def paused(self, samples_by_prompt: Sequence[Sequence[Sample] | Failure]) -> list[list[Sample] | Failure]:
        """Apply the pauses to samples that were drawn without them."""
        pauses = self.pauses or [None] * len(self.prompts)
        return [
            samples if isinstance(samples, Failure) else [pause.cut(each) if pause else each for each in samples]
            for samples, pause in zip(samples_by_prompt, pauses, strict=True)
        ]


def prefix_trie(candidates: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], list[int]]:
    """Each proper prefix of a candidate once, shorter ones first, with the distinct tokens that follow it."""
    trie: dict[tuple[int, ...], list[int]] = {(): []}
    for ids in candidates:
        for index, token in enumerate(ids):
            tokens = trie.setdefault(ids[:index], [])
            if token not in tokens:
                tokens.append(token)
    return trie


def common_prefix(prompts: Sequence[Ids]) -> Ids:
    """The longest common prefix of all prompts."""
    alike = takewhile(lambda ids: len(set(ids)) == 1, zip(*prompts, strict=False))
    return tuple(ids[0] for ids in alike)


Asked = tuple[Ids, list[int]]
"""A prompt, and the tokens whose log-probabilities after it are wanted, in nats."""


def score_each_prefix(
    prompts: Sequence[Ids],
    candidates: Sequence[Sequence[Ids]],
    ask: Callable[[list[Asked]], Sequence[list[float] | Failure]],
) -> list[list[Sample] | Failure]:
    """``Generator.score`` where each proper prefix of a candidate is a request, so that a prefix cache helps."""
    tries = [prefix_trie(each) if each else {} for each in candidates]
    pairs = zip(prompts, tries, strict=True)
    rows = iter(ask([(prompt + prefix, trie[prefix]) for prompt, trie in pairs for prefix in trie]))
    scored = list[list[Sample] | Failure]()
    for each, trie in zip(candidates, tries, strict=True):
        known, failed = dict[Ids, float](), list[Failure]()
        for prefix, tokens in trie.items():
            row = next(rows)
            if isinstance(row, Failure):
                failed.append(row)
            else:
                known |= {(*prefix, token): value for token, value in zip(tokens, row, strict=True)}
        samples = (Sample(ids, tuple(known[ids[: end + 1]] for end in range(len(ids)))) for ids in each)
        scored.append(failed[0] if failed else list(samples))
    return scored


class Generator(ABC):
    """A language model that samples. Callers must pass only prompts for which ``refusal`` returns no reason."""

    concurrent = False
    """Whether several threads may call it at the same time."""
    usage: Usage
    context: int
    """Most tokens of a prompt and its sample together."""
    end_ids: Sequence[int] = ()
    """Tokens that end a text by the model's own configuration, where that is known."""

    @abstractmethod
    def sample(self, request: SampleRequest) -> Sequence[Sequence[Sample] | Failure]:
        """Draw ``count`` samples of each prompt. It ends at a stop token, a limit, its pause or the context."""

    @abstractmethod
    def score(
        self, prompts: Sequence[Ids], candidates: Sequence[Sequence[Ids]], temperature: float = 1.0
    ) -> Sequence[Sequence[Sample] | Failure]:
        """Given continuations of each prompt as samples, with the log-probabilities that they would have if sampled at
        ``temperature``; 0 means 1."""

    @abstractmethod
    def forget(self) -> None:
        """Drop all cached prefixes. Must be called after the weights have changed."""

    async def in_background(self, call: Callable[[], Answer]) -> Answer:
        """Run a call of this generator; in a thread if it is concurrent."""
        return await in_thread(call) if self.concurrent else call()

    def refusal(self, prompt: tuple[int, ...]) -> str:
        """The reason why the model cannot read this prompt, in one sentence; empty if it can."""
        if len(prompt) >= self.context:
            return (
                f"the prompt has {len(prompt)} tokens, {CONTEXT_FULL} {self.context}: lower policy.max_new_tokens or "
                "the length of observations, set policy.context=drop, or use a model with a longer context"
            )
        return ""

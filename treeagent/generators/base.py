"""The interface of a language model: it takes prompts as token ids, and returns sampled token ids with their
log-probabilities.

Three implementations: ``local`` runs a transformers model in this process, ``vllm`` runs a vLLM engine in this process,
and ``remote`` sends requests to a server. This module does not import torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

from treeagent.generators.usage import Usage
from treeagent.threads import in_thread

if TYPE_CHECKING:
    from treeagent.generators.structured import Form  # needs the extra "structured"

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled continuation of a prompt."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probability of each token in nats, under the distribution that it was drawn from (temperature, top-p and
    min-p applied)."""
    forced: tuple[int, ...] = ()
    """As for ``Action``."""

    def followed_by(self, token_ids: Sequence[int]) -> "Sample":
        """This sample with forced tokens appended."""
        indices = range(len(self.token_ids), len(self.token_ids) + len(token_ids))
        zeros = (0.0,) * len(token_ids)
        return Sample((*self.token_ids, *token_ids), self.logprobs + zeros, (*self.forced, *indices))


@dataclass(frozen=True, slots=True)
class Failure:
    """The result for a prompt that could not be answered. The other prompts of the batch have their own results."""

    reason: str
    """The reason, in one sentence."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Ends a sample early: after the first token at which ``reached`` holds."""

    tokens: frozenset[int]
    """``reached`` is called only after one of these tokens, because no other token can make it true."""
    reached: Callable[[tuple[int, ...]], bool]
    """Called with all token ids sampled so far."""

    def cut(self, sample: Sample) -> Sample:
        """Shorten a sample that was drawn without this pause, as if it had been drawn with it."""
        for index, token in enumerate(sample.token_ids, start=1):
            if token in self.tokens and self.reached(sample.token_ids[:index]):
                return Sample(sample.token_ids[:index], sample.logprobs[:index])
        return sample


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A batch of prompts, with the settings for sampling their continuations."""

    prompts: Sequence[tuple[int, ...]]
    """Token ids of each prompt."""
    count: int
    """Samples per prompt; at most 1 at temperature 0, except for ``local``."""
    seeds: Sequence[int]
    """One seed per prompt. The samples of ``prompts[i]`` depend only on ``seeds[i]``, up to rounding."""
    stop_id: int
    """The token that ends a sample; the sample includes it."""
    max_new_tokens: int | Sequence[int]
    """Most tokens of a sample: one number for all prompts, or one per prompt."""
    temperature: float = 1.0
    """Sampling temperature. 0 takes the likeliest token and reports its log-probability at temperature 1."""
    top_p: float = 1.0
    """Only the likeliest tokens that together have this probability are drawn (Holtzman et al. 2020)."""
    min_p: float = 0.0
    """Only tokens with at least this fraction of the likeliest token's probability are drawn (Nguyen et al. 2024)."""
    pauses: Sequence[Pause | None] = ()
    """One per prompt; empty means no pauses."""
    form: "Form | None" = None
    """A grammar for the whole turn. Only tokens are drawn after which the turn can still satisfy it. ``local`` reports
    log-probabilities among all tokens, as the learners compute them, unless ``top_p`` or ``min_p`` leaves some out.
    Engines and servers report log-probabilities among the allowed tokens."""
    trees: Sequence[str] = ()
    """For each prompt a name of its tree; may be empty. Prompts of a tree share a prefix, so one server of a pool
    answers all of them. Nothing else depends on these names."""
    turn_prefixes: Sequence[tuple[int, ...]] = ()
    """For each prompt the tokens of an unfinished turn at its end, which count towards ``form``; empty means none."""

    def limits(self, context: int) -> list[int]:
        """The most new tokens of each prompt, for a model with a context of ``context`` tokens."""
        most = self.max_new_tokens
        requested = [most] * len(self.prompts) if isinstance(most, int) else most
        return [min(new, context - len(prompt)) for new, prompt in zip(requested, self.prompts, strict=True)]

    def paused(self, samples_by_prompt: Sequence[Sequence[Sample] | Failure]) -> list[list[Sample] | Failure]:
        """Apply the pauses to samples that were drawn without them, because engines and servers have no pauses."""
        pauses = self.pauses or [None] * len(self.prompts)
        return [
            samples if isinstance(samples, Failure) else [pause.cut(each) if pause else each for each in samples]
            for samples, pause in zip(samples_by_prompt, pauses, strict=True)
        ]


def prefix_trie(candidates: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], list[int]]:
    """The trie of the candidates: each proper prefix of a candidate once, with the distinct tokens that follow it. The
    empty prefix comes first, and every prefix comes before its continuations."""
    trie: dict[tuple[int, ...], list[int]] = {(): []}
    for ids in candidates:
        for index, token in enumerate(ids):
            tokens = trie.setdefault(ids[:index], [])
            if token not in tokens:
                tokens.append(token)
    return trie


def common_prefix(prompts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The longest common prefix of all prompts."""
    alike = takewhile(lambda ids: len(set(ids)) == 1, zip(*prompts, strict=False))
    return tuple(ids[0] for ids in alike)


def samples_from_trie(
    candidates: Sequence[tuple[int, ...]], logprobs: Mapping[tuple[int, ...], Mapping[int, float]]
) -> list[Sample]:
    """The candidates as samples, with the log-probabilities of their tokens taken from ``logprobs``: for each prefix
    (``prefix_trie``), the log-probability of each token after it."""
    return [Sample(ids, tuple(logprobs[ids[:index]][token] for index, token in enumerate(ids))) for ids in candidates]


class Generator(ABC):
    """A language model that samples. Callers must pass only prompts for which ``refusal`` returns no reason."""

    concurrent = False
    """Whether several threads may call the generator at the same time and are answered concurrently."""
    usage: Usage
    context: int
    """Most tokens of a prompt and its sample together."""

    @abstractmethod
    def sample(self, request: SampleRequest) -> Sequence[Sequence[Sample] | Failure]:
        """Draw ``count`` samples of each prompt. A sample ends with the stop token, at its limit, at its pause, or at
        the end of the model's context."""

    @abstractmethod
    def score(
        self,
        prompts: Sequence[tuple[int, ...]],
        candidates: Sequence[Sequence[tuple[int, ...]]],
        temperature: float = 1.0,
        trees: Sequence[str] = (),
    ) -> Sequence[Sequence[Sample] | Failure]:
        """Score given continuations of each prompt. Returns them as samples, with the log-probabilities that they would
        have if they had been sampled at ``temperature``; 0 means 1. The common prefix of the candidates of a prompt is
        computed once. A prompt without candidates is only read, so that later calls find it in the cache. ``trees`` are
        as for ``SampleRequest``."""

    @abstractmethod
    def forget(self) -> None:
        """Drop all cached prefixes. Must be called after the weights have changed."""

    async def in_background(self, call: Callable[[], Answer]) -> Answer:
        """Run a call of this generator and return its result. If the generator is concurrent, the call runs in a thread
        and does not block the event loop."""
        return await in_thread(call) if self.concurrent else call()

    def refusal(self, prompt: tuple[int, ...]) -> str:
        """The reason why the model cannot read this prompt, in one sentence; empty if it can."""
        if len(prompt) >= self.context:
            return (
                f"the prompt has {len(prompt)} tokens, but the model's context holds {self.context}: lower "
                "environment.max_steps or environment.observation_bytes, or use a model with a longer context"
            )
        return ""

"""What treeagent asks of a language model: token ids go in, sampled token ids and their log-probabilities come out.

Three implementations: ``local`` runs a transformers model in this process, ``vllm`` runs a vLLM engine in this process,
and ``remote`` asks a server. This module imports no torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, TypeVar

from treeagent.generators.usage import Usage
from treeagent.threads import in_thread

if TYPE_CHECKING:  # a client of a server does not need torch
    from torch import Tensor

    from treeagent.generators.structured import Form  # needs the extra "structured"

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled continuation of a prompt."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probability of each token in nats, under the distribution drawn from (temperature, top-p and min-p
    applied)."""
    forced: tuple[int, ...] = ()
    """As of ``Action``."""

    def followed_by(self, token_ids: Sequence[int]) -> "Sample":
        """This sample and tokens that are written behind it."""
        places = range(len(self.token_ids), len(self.token_ids) + len(token_ids))
        zeros = (0.0,) * len(token_ids)
        return Sample((*self.token_ids, *token_ids), self.logprobs + zeros, (*self.forced, *places))


@dataclass(frozen=True, slots=True)
class Failure:
    """One prompt could not be answered; the other prompts of the batch were."""

    reason: str
    """One sentence."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Ends a sample early: after the first token at which ``reached`` holds."""

    tokens: frozenset[int]
    """``reached`` is called only after one of these tokens: no other token can make it true."""
    reached: Callable[[tuple[int, ...]], bool]
    """Called with all token ids sampled so far."""

    def cut(self, sample: Sample) -> Sample:
        """Shorten a sample that was drawn without this pause, as if it had been drawn with it."""
        for place, token in enumerate(sample.token_ids, start=1):
            if token in self.tokens and self.reached(sample.token_ids[:place]):
                return Sample(sample.token_ids[:place], sample.logprobs[:place])
        return sample


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A batch of prompts and how to continue them."""

    prompts: Sequence[tuple[int, ...]]
    """Token ids of each prompt."""
    count: int
    """Samples per prompt; at most 1 at temperature 0, except for ``local``."""
    seeds: Sequence[int]
    """One per prompt. The samples of ``prompts[i]`` depend on ``seeds[i]`` alone, up to rounding."""
    stop_id: int
    """The token that ends a sample; the sample keeps it."""
    max_new_tokens: int | Sequence[int]
    """Most tokens of a sample: one number for all prompts, or one per prompt."""
    temperature: float = 1.0
    """0 takes the likeliest token and reports its log-probability at temperature 1."""
    top_p: float = 1.0
    """Only the likeliest tokens that together have this probability are drawn (Holtzman et al. 2020)."""
    min_p: float = 0.0
    """Only tokens of at least this share of the likeliest one's probability are drawn (Nguyen et al. 2024)."""
    pauses: Sequence[Pause | None] = ()
    """One per prompt, or none at all."""
    form: "Form | None" = None
    """A grammar for the whole turn: only tokens are drawn from which the turn can still satisfy it. ``local`` reports
    log-probabilities among all tokens, as the learners compute them, unless ``top_p`` or ``min_p`` leaves some out;
    engines and servers among the allowed ones."""
    trees: Sequence[str] = ()
    """The tree that each prompt belongs to, by a name of its own, or none at all. Prompts of a tree share a beginning,
    so that one server of a pool answers them all; nothing else depends on it."""
    begun: Sequence[tuple[int, ...]] = ()
    """The tokens of an unfinished turn with which each prompt ends, which count towards ``form``; none by default."""

    def limits(self, context: int) -> list[int]:
        """Most new tokens of each prompt in a model whose context holds ``context`` tokens."""
        most = self.max_new_tokens
        wanted = [most] * len(self.prompts) if isinstance(most, int) else most
        return [min(new, context - len(prompt)) for new, prompt in zip(wanted, self.prompts, strict=True)]

    def paused(self, drawn: Sequence[Sequence[Sample] | Failure]) -> list[list[Sample] | Failure]:
        """Apply the pauses to samples that were drawn without them, as engines and servers draw."""
        pauses = self.pauses or [None] * len(self.prompts)
        return [
            samples if isinstance(samples, Failure) else [pause.cut(each) if pause else each for each in samples]
            for samples, pause in zip(drawn, pauses, strict=True)
        ]


def beginnings(candidates: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], list[int]]:
    """The candidates' shared beginnings: each proper beginning once, the empty one first and a shorter one before those
    that continue it, with the distinct tokens that follow it."""
    following: dict[tuple[int, ...], list[int]] = {(): []}
    for ids in candidates:
        for place, token in enumerate(ids):
            tokens = following.setdefault(ids[:place], [])
            if token not in tokens:
                tokens.append(token)
    return following


def common_beginning(prompts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The tokens with which all prompts begin."""
    alike = takewhile(lambda ids: len(set(ids)) == 1, zip(*prompts, strict=False))
    return tuple(ids[0] for ids in alike)


def put_together(
    candidates: Sequence[tuple[int, ...]], told: Mapping[tuple[int, ...], Mapping[int, float]]
) -> list[Sample]:
    """The candidates with their log-probabilities, from those of the tokens after each of their ``beginnings``."""
    return [Sample(ids, tuple(told[ids[:place]][token] for place, token in enumerate(ids))) for ids in candidates]


class Generator(ABC):
    """A language model that samples. ``refusal`` must have no reason against a prompt."""

    concurrent = False
    """Whether several threads may call it at once, and are answered side by side."""
    usage: Usage
    context: int
    """Most tokens that prompt and sample may have together."""

    @abstractmethod
    def sample(self, request: SampleRequest) -> Sequence[Sequence[Sample] | Failure]:
        """``count`` samples of each prompt. A sample ends with the stop token, at its limit, at its pause, or where the
        model's context ends."""

    @abstractmethod
    def next_logprobs(
        self, prompts: Sequence[tuple[int, ...]], token_ids: Sequence[int], trees: Sequence[str] = ()
    ) -> "Tensor":
        """Log-probability of each of ``token_ids`` as the next token of each prompt, in nats and at temperature 1:
        [prompts, tokens], on the CPU. ``trees`` are as of ``SampleRequest``."""

    @abstractmethod
    def score(
        self,
        prompts: Sequence[tuple[int, ...]],
        candidates: Sequence[Sequence[tuple[int, ...]]],
        temperature: float = 1.0,
        trees: Sequence[str] = (),
    ) -> Sequence[Sequence[Sample] | Failure]:
        """The given continuations of each prompt, as if they had been sampled there at ``temperature``; 0 stands for
        1, as in ``SampleRequest``, and so do ``trees``. What candidates of a prompt have in common is computed once."""

    @abstractmethod
    def forget(self) -> None:
        """Drop every cached prefix. Must be called when the weights have changed."""

    async def aside(self, call: Callable[[], Answer]) -> Answer:
        """What a call of this generator returns. The event loop goes on meanwhile, if the generator is concurrent."""
        return await in_thread(call) if self.concurrent else call()

    def refusal(self, prompt: tuple[int, ...]) -> str:
        """Why the model cannot read this prompt, in one sentence; empty if it can."""
        if len(prompt) >= self.context:
            return (
                f"the prompt has {len(prompt)} tokens, but the model's context holds {self.context}: lower "
                "environment.max_steps or environment.observation_bytes, or use a model with a longer context"
            )
        return ""

"""What treeagent asks of a language model: token ids in, sampled token ids and their log-probabilities out.

``local`` runs a transformers model in this process, ``vllm`` an engine, ``remote`` asks a server.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from treeagent.generators.usage import Usage
from treeagent.types import UserError

if TYPE_CHECKING:  # so that a client of a server need not load it
    from torch import Tensor

    from treeagent.generators.structured import Form  # its package is an extra


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled continuation."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """In nats, under the distribution drawn from (temperature applied)."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A prompt that could not be answered, its neighbours notwithstanding."""

    reason: str
    """One sentence."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Ends a sample before its stop token, after the token with which ``reached`` first holds."""

    tokens: frozenset[int]
    """The tokens with which it can come to hold: it is asked after these alone."""
    reached: Callable[[tuple[int, ...]], bool]
    """Asked with all ids sampled so far."""

    def cut(self, sample: Sample) -> Sample:
        """A sample that was drawn without this pause, up to it."""
        for place, token in enumerate(sample.token_ids, start=1):
            if token in self.tokens and self.reached(sample.token_ids[:place]):
                return Sample(sample.token_ids[:place], sample.logprobs[:place])
        return sample


class Generator(Protocol):
    """A language model that samples. Not safe for concurrent use."""

    usage: Usage

    @property
    def context(self) -> int:
        """Tokens that the model's context holds."""
        ...

    def sample(
        self,
        prompts: Sequence[tuple[int, ...]],
        count: int,
        seeds: Sequence[int],
        *,
        stop_id: int,
        max_new_tokens: int | Sequence[int],
        temperature: float = 1.0,
        pauses: Sequence[Pause | None] = (),
        form: "Form | None" = None,
        begun: Sequence[tuple[int, ...]] = (),
    ) -> Sequence[Sequence[Sample] | Failure]:
        """``count`` continuations of each prompt, up to ``stop_id`` (kept), ``max_new_tokens`` (one number for all or
        one a prompt), the prompt's pause if there are any, or the end of the model's context.

        With a ``form`` only tokens are drawn with which the turn can still come to it; ``begun`` are those of the turn
        that end each prompt, none if not given. ``local`` reports their log-probabilities among all tokens, as the
        learners compute them, engines and servers those among the tokens that the form allows.

        The draw for ``prompts[i]`` depends on ``seeds[i]`` alone, up to rounding. Temperature 0 takes the likeliest
        token and reports its log-probability at temperature 1.

        Raises:
            UserError: a prompt is one that ``refusal`` tells of, or ``max_new_tokens`` is below 1, or an engine or server
                is to hold a turn to a form that has begun.
        """
        ...

    def next_logprobs(self, prompts: Sequence[tuple[int, ...]], token_ids: Sequence[int]) -> "Tensor":
        """Log-probability, in nats and at temperature 1, of each of the tokens right after each prompt, [prompts,
        tokens], on the CPU.

        Raises:
            UserError: a prompt is one that ``refusal`` tells of.
        """
        ...

    def refusal(self, prompt: tuple[int, ...]) -> str:
        """Why this prompt cannot be read, in one sentence; empty where it can."""
        ...

    def forget(self) -> None:
        """Drop every cached prefix: call it when the weights have changed."""
        ...


def context_refusal(prompt: Sequence[int], context: int) -> str:
    """``Generator.refusal`` of a model whose context holds that many tokens."""
    if not prompt:
        return "the prompt has no tokens"
    if len(prompt) >= context:
        return (
            f"the prompt has {len(prompt)} tokens, but the model's context holds {context}: lower "
            "environment.max_steps or environment.observation_bytes, or use a model with a longer context"
        )
    return ""


def lark(form: "Form | None", begun: Sequence[tuple[int, ...]]) -> str:
    """The form as engines and servers read it, who follow it from a turn's beginning only; empty for none.

    Raises:
        UserError: a turn has begun.
    """
    if form is None:
        return ""
    if any(begun):
        raise UserError(
            "a turn that has begun can be held to a form by the local generator alone: set policy.generator=local, "
            "search.granularity=step, or policy.structured=false"
        )
    return form.lark


def token_limits(prompts: Sequence[Sequence[int]], max_new_tokens: int | Sequence[int], context: int) -> list[int]:
    """Most tokens to be sampled after each prompt.

    Raises:
        UserError: a prompt does not fit the context, or ``max_new_tokens`` is below 1.
    """
    wanted = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    if min(wanted, default=1) < 1:
        raise UserError(f"max_new_tokens is {min(wanted)}: give at least 1")
    for prompt in prompts:
        if refusal := context_refusal(prompt, context):
            raise UserError(refusal)
    return [min(most, context - len(prompt)) for most, prompt in zip(wanted, prompts, strict=True)]

"""A language model as policy and value function: states in, think/action candidates and V(s) out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from treeagent.agent.value_head import ValueHead
from treeagent.generators.base import Failure, Generator, Pause, Sample, SampleRequest
from treeagent.generators.chat import ChatFormat, Reading
from treeagent.generators.grammar import Grammar, ReAct
from treeagent.generators.local import LocalGenerator
from treeagent.types import Action, Estimate, Message, Proposal, State

if TYPE_CHECKING:  # their packages are extras
    from treeagent.generators.remote import RemoteChat
    from treeagent.generators.structured import Form


@dataclass(frozen=True, slots=True)
class LLMPolicy:
    """A causal language model as the search's policy: it samples whole think/action turns, and where a turn has begun,
    the rest of it."""

    generator: Generator
    chat: ChatFormat
    grammar: Grammar = ReAct()  # noqa: RUF009 - frozen
    temperature: float = 1.0
    """Sampling temperature; 0 takes the likeliest token each time."""
    max_new_tokens: int = 64
    """Most tokens of a turn; a turn that is cut off there has no stop token."""
    form: "Form | None" = None
    """The form that constrains every turn while it is sampled; None samples freely."""

    def greedy(self) -> "LLMPolicy":
        return replace(self, temperature=0.0)

    def forget(self) -> None:
        """Clear the caches of earlier conversations, before others that share no prefix with them."""
        self.generator.forget()
        self.chat.forget()

    async def propose(
        self, states: Sequence[State], count: int, seeds: Sequence[int], pause: Pause | None = None
    ) -> Sequence[Proposal]:
        """``count`` turns at each state, with token ids and log-probabilities (in nats) under the distribution sampled
        from. A state whose prompt cannot be read has no actions and the reason as ``error``. A turn that has not begun
        yet ends where it meets ``pause``."""
        readings, prompts, errors = _read_all(self.chat, self.generator, states)
        readable = [place for place, error in enumerate(errors) if not error]
        last = [state.messages[-1] for state in states]
        begun = [message if message.partial else Message("assistant", "") for message in last]
        request = SampleRequest(
            [prompts[place] for place in readable],
            count,
            [seeds[place] for place in readable],
            stop_id=self.chat.stop_id,
            max_new_tokens=[self.max_new_tokens - len(begun[place].token_ids) for place in readable],
            temperature=self.temperature,
            pauses=[None if begun[place].partial else pause for place in readable],
            form=self.form,
            begun=[begun[place].token_ids for place in readable],
        )
        actions: dict[int, tuple[Action, ...]] = {}
        for place, drawn in zip(readable, self.generator.sample(request), strict=True):
            if isinstance(drawn, Failure):
                errors[place] = drawn.reason
            else:
                actions[place] = tuple(self._read(begun[place], sample) for sample in drawn)
        return [
            Proposal(self.chat.added_ids(reading), actions.get(place, ()), error, reading.left_out)
            for place, (reading, error) in enumerate(zip(readings, errors, strict=True))
        ]

    def _read(self, begun: Message, sample: Sample) -> Action:
        """What a sample adds to a turn, which is decoded whole: texts of its parts might not add up to its text."""
        text = self.chat.decode((*begun.token_ids, *sample.token_ids))[len(begun.content) :]
        whole = self.grammar.read(begun.content + text, sample.token_ids, sample.logprobs)
        return replace(whole, text=text, thought="") if begun.partial else whole


def _read_all(
    chat: ChatFormat, generator: Generator, states: Sequence[State]
) -> tuple[list[Reading], list[tuple[int, ...]], list[str]]:
    """How each state is read, the prompt that this makes, and why it cannot be read, if it cannot."""
    readings = [chat.read(state.messages) for state in states]
    prompts = [chat.prompt_ids(reading.messages) for reading in readings]
    told = zip(readings, prompts, strict=True)
    return readings, prompts, [reading.error or generator.refusal(prompt) for reading, prompt in told]


@dataclass(frozen=True, slots=True)
class ChatPolicy:
    """Draws whole think/action steps as text, from a server that gives no token ids: they can be played and measured,
    not learned from."""

    generator: "RemoteChat"
    grammar: Grammar = ReAct()  # noqa: RUF009 - frozen
    opening: tuple[Message, ...] = ()
    """Messages before every conversation: instructions and demonstrations."""
    temperature: float = 1.0
    """Sampling temperature; 0 takes the likeliest token each time."""
    max_new_tokens: int = 64
    """Most tokens of a turn."""

    def greedy(self) -> "ChatPolicy":
        return replace(self, temperature=0.0)

    def forget(self) -> None:
        """As of ``LLMPolicy``."""
        self.generator.forget()

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        """``count`` steps at each state, without token ids and log-probabilities."""
        replies = self.generator.reply(
            [(*self.opening, *state.messages) for state in states],
            count,
            seeds,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
        )
        return [
            Proposal((), (), drawn.reason)
            if isinstance(drawn, Failure)
            else Proposal((), tuple(map(self.grammar.read, drawn.texts)), untold_tokens=drawn.generated_tokens)
            for drawn in replies
        ]


@dataclass(frozen=True, slots=True)
class HeadValue:
    """V(s) from a value head on the policy's last hidden state at the last token of the state. It needs a model in this
    process (``LocalGenerator``)."""

    generator: LocalGenerator
    chat: ChatFormat
    head: ValueHead

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        """V(s) of each state in reward units; 0 and the reason as ``error`` where its prompt cannot be read."""
        readings, prompts, errors = _read_all(self.chat, self.generator, states)
        readable = [prompt for prompt, error in zip(prompts, errors, strict=True) if not error]
        with torch.no_grad():
            values = iter(self.head.value(self.generator.hidden(readable)).tolist() if readable else ())
        return [
            Estimate(
                0.0 if error else next(values), self.chat.added_ids(reading), error=error, left_out=reading.left_out
            )
            for reading, error in zip(readings, errors, strict=True)
        ]

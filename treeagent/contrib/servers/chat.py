"""A policy on a server that gives text alone, such as a hosted model: it can be played and evaluated, but not learnt
from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as options

from treeagent.config import RunConfig
from treeagent.generators.base import Failure
from treeagent.generators.remote import Server
from treeagent.generators.turn import Grammar, make_grammar
from treeagent.pipeline.build import known_tools, shots
from treeagent.threads import in_thread
from treeagent.types import TURN_CUT_OFF, Action, Message, Proposal, State, UserError, storable


@options(frozen=True, config=ConfigDict(extra="forbid"))
class Chat:
    """``policy.generator`` "chat". It has no settings of its own: the server is at ``policy.url``."""

    def make(self, checkpoint: Path, config: RunConfig, scores: str = "") -> "ChatPolicy":
        """The policy."""
        policy, tools = config.policy, known_tools(config)
        if policy.is_structured or scores:
            told = "policy.structured" if policy.is_structured else scores.partition("=")[0]
            raise UserError(f"{told} wants token ids, which policy.generator 'chat' does not give: leave one out")
        grammar = make_grammar(policy.format, tools=tools)
        texts = (policy.preface, grammar.instructions(tools) if policy.is_told else "")
        system = [Message("system", "\n\n".join(filter(None, texts)))] if any(texts) else []
        shown = [message for shot in shots(config) for message in shot.messages(grammar, tools)]
        chat = RemoteChat(config.server(policy.url), str(checkpoint))
        return ChatPolicy(chat, grammar, (*system, *shown), policy.temperature, policy.max_new_tokens)


class Replies(NamedTuple):
    """The replies to one conversation."""

    texts: list[str]
    generated_tokens: int
    """Tokens of all replies together, as the server counts them; 0 if it does not count them."""
    cut_off: Sequence[bool] = ()
    """Whether each reply was cut off at its limit of tokens."""


class RemoteChat(Server):
    """A client whose conversations and replies are text, without token ids and log-probabilities."""

    def reply(
        self,
        conversations: Sequence[Sequence[Message]],
        count: int,
        seeds: Sequence[int],
        *,
        max_new_tokens: int,
        temperature: float,
    ) -> list[Replies | Failure]:
        """Get ``count`` replies to each conversation."""
        asked = {"max_tokens": max_new_tokens, "temperature": temperature}
        each = zip(conversations, seeds, strict=True)
        return self.gather([partial(self._reply, asked, count, *one) for one in each])

    def _reply(self, asked: dict[str, Any], count: int, conversation: Sequence[Message], seed: int) -> Replies:
        texts, cut_off, generated_tokens = list[str](), list[bool](), 0
        while len(texts) < count:  # a server may return fewer replies than requested
            answer = self.chat(conversation, n=count - len(texts), seed=seed + len(texts), **asked)
            generated_tokens += answer.usage.completion_tokens if answer.usage else 0
            texts += [storable(_text(choice.message)) for choice in answer.choices]
            cut_off += [choice.finish_reason == "length" for choice in answer.choices]
        return Replies(texts[:count], generated_tokens, cut_off[:count])


def _text(message: Any) -> str:
    """A message of a server as one text: the thought that a reasoning parser took out of it, then its content."""
    thought = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    content = message.content or ""
    return f"<think>\n{thought}\n</think>\n\n{content}" if isinstance(thought, str) else content


@dataclass(frozen=True, slots=True)
class ChatPolicy:
    """Samples whole think/action steps as text."""

    generator: RemoteChat
    grammar: Grammar
    opening: tuple[Message, ...] = ()
    """Messages before every conversation: instructions and demonstrations."""
    temperature: float = 1.0
    """Sampling temperature; 0 always takes the likeliest token."""
    max_new_tokens: int = 64
    """Most tokens of a turn."""
    concurrent: ClassVar[bool] = True
    """As for ``types.is_concurrent``."""

    def greedy(self) -> "ChatPolicy":
        return replace(self, temperature=0.0)

    def forget(self) -> None:
        """As for ``LLMPolicy``."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        """Propose ``count`` steps at each state, without token ids and log-probabilities."""
        reply = partial(
            self.generator.reply,
            [(*self.opening, *state.messages) for state in states],
            count,
            seeds,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
        )
        return [
            Proposal((), (), replies.reason, failed=True)
            if isinstance(replies, Failure)
            else Proposal(
                (), tuple(map(self._read, replies.texts, replies.cut_off)), unlisted_tokens=replies.generated_tokens
            )
            for replies in await in_thread(reply)
        ]

    def _read(self, text: str, cut_off: bool) -> Action:
        """The action in a reply. A reply that was cut off makes no call."""
        action = self.grammar.read(text)
        if action.error or not cut_off:
            return action
        return replace(action, call="", error=f"{TURN_CUT_OFF} {self.max_new_tokens} tokens")

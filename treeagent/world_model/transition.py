"""Experience: one transition of an environment, without its tree, as a world model learns and retrieves it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import orjson

from treeagent.generators.grammar import Grammar
from treeagent.types import Message, Origin, Task, ToolCall

Record = dict[str, Any]
Place = tuple[tuple[Message, ...], str]
"""A history, as ``played`` writes it, and an action."""


@dataclass(frozen=True, slots=True)
class Experience:
    """(s, a, r, s') of one step that was played or imagined."""

    task_id: str
    history: tuple[Message, ...]
    """s: the conversation before the action, as ``played`` writes it."""
    action: str
    """a: the call alone, as text."""
    observation: str
    """The environment's answer: what s' adds to s and a."""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    invalid: bool = False
    """The environment refused the call."""
    origin: Origin = "real"
    depth: int = 0
    """Steps before this one."""

    @property
    def kind(self) -> str:
        """The action's first word, such as ``search``."""
        word = re.match(r"\W*(\w+)", self.action)
        return word[1].lower() if word else ""

    @property
    def opens(self) -> bool:
        """Whether this is the opening of a task: the answer to a reset."""
        return len(self.history) == 1

    @property
    def seen(self) -> str:
        """The last observation before the action."""
        return self.history[-1].content

    def digest(self) -> str:
        """Hash of s, a and the observation. Steps with equal digests teach the same."""
        history = [[message.role, message.content] for message in self.history]
        return blake2b(orjson.dumps([history, self.action, self.observation]), digest_size=16).hexdigest()

    def to_record(self) -> Record:
        """As JSON values."""
        record = asdict(self)
        record["history"] = [[message.role, message.content] for message in self.history]
        return record


def from_record(record: Mapping[str, Any]) -> Experience:
    history = tuple(Message(role, content) for role, content in record["history"])
    return Experience(**{**record, "history": history})


def played(task: Task, messages: Sequence[Message], grammar: Grammar | None) -> tuple[Message, ...]:
    """A conversation as the environment sees it: the task, then observations, and of each turn only the call, without
    token ids.

    The agent's thoughts do not act on the environment, so they must not persuade a world model either. A malformed turn
    stays as it is, and without a grammar every turn does.
    """
    first, *others = messages
    opening = Message(first.role, first.content.removeprefix(f"{task.prompt}\n"))
    told = (
        Message(message.role, _called(message.content, grammar) if message.role == "assistant" else message.content)
        for message in others
    )
    return (Message("user", task.prompt), opening, *told)


def _called(text: str, grammar: Grammar | None) -> str:
    if grammar is None:
        return text
    action = grammar.read(text)
    return text if action.error else call_text(action.call)


def call_text(call: str | ToolCall) -> str:
    """A call in one line of text: a tool call as its name and its arguments in JSON, keys sorted."""
    if isinstance(call, str):
        return call
    return f"{call.name} {orjson.dumps(dict(call.arguments), option=orjson.OPT_SORT_KEYS).decode()}"


def answered(messages: Iterable[Message]) -> str:
    """The environment's answer to the agent's last turn."""
    told: list[str] = []
    for message in messages:
        told = [] if message.role == "assistant" else [*told, message.content]
    return "\n".join(told)

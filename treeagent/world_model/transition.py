"""Experience: one transition of an environment, without its tree, which a world model learns from and retrieves."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

import orjson

from treeagent.generators.turn import Grammar
from treeagent.types import Message, Origin, Task, ToolCall

Record = dict[str, Any]
Place = tuple[tuple[Message, ...], str]
"""A history in the form of ``environment_history``, and an action."""


@dataclass(frozen=True, slots=True)
class Experience:
    """(s, a, r, s') of one real or imagined step."""

    task_id: str
    history: tuple[Message, ...]
    """s: the conversation before the action, in the form of ``environment_history``."""
    action: str
    """a: the call as text, without the agent's thought."""
    observation: str
    """The environment's answer: s' is s followed by a and this."""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    invalid: bool = False
    """Whether the environment refused the call."""
    origin: Origin = "real"
    depth: int = 0
    """Number of steps before this one."""

    @property
    def kind(self) -> str:
        """The action's first word, such as ``search``."""
        word = re.match(r"\W*(\w+(?:[.-]\w+)*)", self.action)
        return word[1].lower() if word else ""

    @property
    def opens(self) -> bool:
        """Whether this is the opening of a task, which is the answer to a reset."""
        return len(self.history) == 1

    @property
    def seen(self) -> str:
        """The last observation before the action."""
        return self.history[-1].content

    def digest(self) -> str:
        """A hash of s, a and the observation."""
        history = [[message.role, message.content] for message in self.history]
        return blake2b(orjson.dumps([history, self.action, self.observation]), digest_size=16).hexdigest()

    def to_record(self) -> Record:
        record = asdict(self)
        record["history"] = [[message.role, message.content] for message in self.history]
        return record


def from_record(record: Mapping[str, Any]) -> Experience:
    history = tuple(Message(role, content) for role, content in record["history"])
    return Experience(**{**record, "history": history})


def environment_history(task: Task, messages: Sequence[Message], grammar: Grammar | None) -> tuple[Message, ...]:
    """A conversation as the environment sees it: the task, then the observations and the calls, without thoughts and
    token ids. A malformed turn is not changed; without a grammar, no turn is."""
    first, *others = messages
    turns = [Message("user", task.prompt), Message(first.role, first.content.removeprefix(f"{task.prompt}\n"))]
    for message in others:
        action = grammar.read(message.content) if grammar is not None and message.role == "assistant" else None
        call = message.content if action is None or action.error else call_text(action.call)
        turns.append(Message(message.role, call))
    return tuple(turns)


def call_text(call: str | ToolCall) -> str:
    """A call as text; a tool call is its name and its arguments in JSON, with sorted keys."""
    if isinstance(call, str):
        return call
    return f"{call.name} {orjson.dumps(dict(call.arguments), option=orjson.OPT_SORT_KEYS).decode()}"


def last_answer(messages: Iterable[Message]) -> str:
    """The environment's answer to the agent's last turn."""
    answers: list[str] = []
    for message in messages:
        answers = [] if message.role == "assistant" else [*answers, message.content]
    return "\n".join(answers)

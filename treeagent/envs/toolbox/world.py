"""Worlds and questions of the toolbox: tables of people, teams and rooms, and pipelines of calls that read them."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treeagent.envs.base import ToolSpec
from treeagent.envs.calls import text_tool
from treeagent.envs.toolbox.options import ToolboxOptions
from treeagent.types import ToolCall

_NAMES = ("mira", "tom", "ana", "leo", "zoe", "kai", "eva", "ben", "ida", "max", "lua", "sam")
_TEAMS = ("red", "blue", "green", "gold", "grey", "pink")
_ROOMS = ("attic", "hall", "lab", "loft", "studio", "vault")
_READS: Mapping[str, tuple[str, str]] = {
    "team_of": ("person", "team"),
    "badge_of": ("person", "number"),
    "lead_of": ("team", "person"),
    "room_of": ("team", "room"),
    "floor_of": ("room", "number"),
    "phone_of": ("room", "number"),
}
"""The kinds of argument and result of each tool that reads a table."""
ADD, ANSWER = "add", "answer"
TOOLS: tuple[ToolSpec, ...] = (
    *(
        text_tool(name, f"Look up the {name.partition('_')[0]} of a {taken}.", taken, read_only=True)
        for name, (taken, _) in _READS.items()
    ),
    ToolSpec(
        ADD,
        "Add two numbers.",
        {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
            "required": ["x", "y"],
            "additionalProperties": False,
        },
        read_only=True,
    ),
    text_tool(ANSWER, "Answer the question in one word. Ends the visit.", "text", answers=True),
)

Question = Any
"""A word, or a list ``[tool, argument, ...]`` in which each argument is a question itself."""
Call = tuple[str, tuple[str, ...]]
"""A tool's name and its arguments, in the order of its schema."""


@dataclass(frozen=True, slots=True)
class Key:
    """The answer key of a task: the world, and the question as a pipeline of calls."""

    tables: dict[str, dict[str, str]]
    """For each tool, its results by argument."""
    question: list[Any]
    noted: bool = False
    """Whether the prompt states the answer."""

    def value(self, question: Question) -> str:
        """Return the answer to a question: the result of its outermost call."""
        if isinstance(question, str):
            return question
        name, values = self.call(question)
        return str(sum(map(int, values))) if name == ADD else self.tables[name][values[0]]

    def call(self, question: Sequence[Question]) -> Call:
        """Return the outermost call of a question. Its arguments are the answers to the inner questions."""
        return str(question[0]), tuple(map(self.value, question[1:]))

    def calls(self, question: Question) -> list[Call]:
        """Return all calls of a question, inner ones first."""
        if isinstance(question, str):
            return []
        return [each for argument in question[1:] for each in self.calls(argument)] + [self.call(question)]

    @property
    def answer(self) -> str:
        return self.value(self.question)

    def due(self, made: Sequence[Call]) -> list[Call]:
        """Return the calls of the pipeline that are due after the calls ``made``: those not yet made whose arguments
        are known. Empty if only the answer is left."""
        return [] if self.noted else list(dict.fromkeys(self._due(self.question, made)))

    def _due(self, question: Question, made: Sequence[Call]) -> Iterator[Call]:
        if isinstance(question, str) or any(each in made for each in orders(self.call(question))):
            return
        inner = [each for argument in question[1:] for each in self._due(argument, made)]
        yield from inner or [self.call(question)]


def orders(call: Call) -> list[Call]:
    """Return a call in every order of its arguments that gives the same result: a sum has two."""
    name, values = call
    return list(dict.fromkeys([call, (name, values[::-1])])) if name == ADD else [call]


def tool_call(call: Call) -> ToolCall:
    """Convert a ``Call`` to a ``ToolCall``."""
    name, values = call
    if name == ADD:
        return ToolCall(name, {"x": int(values[0]), "y": int(values[1])})
    argument = _READS[name][0] if name in _READS else "text"
    return ToolCall(name, {argument: values[0]})


def draw(rng: random.Random, options: ToolboxOptions) -> tuple[Key, str]:
    """Draw a task: its world with the question, and the question as text."""
    calls = rng.randint(options.least_calls, options.most_calls)
    while True:
        tables = _tables(rng, options.people)
        key = Key(tables, _pipeline(rng, tables, max(calls, 1)), noted=calls == 0)
        if len(set(key.calls(key.question))) == max(calls, 1):  # otherwise one call would answer two parts
            return key, prompt(key)


def longer(rng: random.Random, key: Key) -> Key:
    """Return the same world with a longer question. If the prompt states the answer, it no longer does. Otherwise a
    further call takes the old answer as its argument. No table takes a number, so a number is added to the result of
    another lookup, which needs two more calls."""
    value_kind = next((gives for name, (_, gives) in _READS.items() if name == key.question[0]), "number")
    onward = [name for name, (argument_kind, _) in _READS.items() if argument_kind == value_kind]
    if key.noted:
        return Key(key.tables, key.question)
    if onward:
        return Key(key.tables, [rng.choice(onward), key.question])
    return Key(key.tables, [ADD, key.question, _pipeline(rng, key.tables, 1, "number")])


def prompt(key: Key) -> str:
    question = f"What is {_words(key.question)}?"
    return f"{_words(key.question)} is {key.answer}. {question}" if key.noted else question


def _words(question: Question) -> str:
    if isinstance(question, str):
        return question
    if question[0] == ADD:
        return f"the sum of {_words(question[1])} and {_words(question[2])}"
    return f"the {str(question[0]).partition('_')[0]} of {_words(question[1])}"


def _tables(rng: random.Random, count: int) -> dict[str, dict[str, str]]:
    names, teams = rng.sample(_NAMES, count), rng.sample(_TEAMS, max(count // 2, 1))
    rooms = rng.sample(_ROOMS, len(teams))
    numbers = iter(rng.sample(range(10, 100), count + 2 * len(teams)))
    return {
        "team_of": {name: teams[index % len(teams)] for index, name in enumerate(names)},
        "badge_of": {name: str(next(numbers)) for name in names},
        "lead_of": {team: rng.choice(names) for team in teams},
        "room_of": dict(zip(teams, rooms, strict=True)),
        "floor_of": {room: str(next(numbers)) for room in rooms},
        "phone_of": {room: str(next(numbers)) for room in rooms},
    }


def _pipeline(
    rng: random.Random, tables: Mapping[str, Mapping[str, str]], calls: int, gives: str = ""
) -> list[Question]:
    """Draw a question of exactly ``calls`` calls. Its answer is of the kind ``gives``, or of any kind if that is empty.
    If there are at least three calls and the answer may be a number, a third of the questions add the answers of two
    shorter questions."""
    if calls >= 3 and gives in ("", "number") and rng.random() < 1 / 3:
        first = rng.randint(1, calls - 2)
        return [ADD, *(_pipeline(rng, tables, each, "number") for each in (first, calls - 1 - first))]
    fitting = [name for name, (_, value_kind) in _READS.items() if gives in ("", value_kind)]
    name = rng.choice(fitting)
    if calls == 1:
        return [name, rng.choice(sorted(tables[name]))]
    return [name, _pipeline(rng, tables, calls - 1, _READS[name][0])]

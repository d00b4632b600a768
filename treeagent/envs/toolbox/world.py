"""The toolbox's worlds and questions: tables of people, teams and rooms, and pipelines of calls that read them."""

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
"""What each tool that reads a table takes and gives."""
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
"""A word, or a list ``[tool, argument, ...]`` whose arguments are questions themselves."""
Call = tuple[str, tuple[str, ...]]
"""A tool's name and its arguments, in the order of its schema."""


@dataclass(frozen=True, slots=True)
class Key:
    """What a task holds: the world, and the question as a pipeline of calls."""

    tables: dict[str, dict[str, str]]
    """What each tool answers, by its argument."""
    question: list[Any]
    noted: bool = False
    """Whether the prompt states the answer."""

    def value(self, question: Question) -> str:
        """The answer to a question, which is that of its outermost call."""
        if isinstance(question, str):
            return question
        name, values = self.call(question)
        return str(sum(map(int, values))) if name == ADD else self.tables[name][values[0]]

    def call(self, question: Sequence[Question]) -> Call:
        """The outermost call of a question, whose arguments are the answers to the questions within."""
        return str(question[0]), tuple(map(self.value, question[1:]))

    def calls(self, question: Question) -> list[Call]:
        """All calls of a question, inner ones first."""
        if isinstance(question, str):
            return []
        return [each for argument in question[1:] for each in self.calls(argument)] + [self.call(question)]

    @property
    def answer(self) -> str:
        return self.value(self.question)

    def due(self, made: Sequence[Call]) -> list[Call]:
        """The calls of the pipeline that are due after those that were ``made``: not made yet, with arguments known.
        Empty where only the answer is left."""
        return [] if self.noted else list(dict.fromkeys(self._due(self.question, made)))

    def _due(self, question: Question, made: Sequence[Call]) -> Iterator[Call]:
        if isinstance(question, str) or (call := self.call(question)) in made:
            return
        inner = [each for argument in question[1:] for each in self._due(argument, made)]
        yield from inner or [call]


def tool_call(call: Call) -> ToolCall:
    """The call of a tool that a ``Call`` stands for."""
    name, values = call
    if name == ADD:
        return ToolCall(name, {"x": int(values[0]), "y": int(values[1])})
    argument = _READS[name][0] if name in _READS else "text"
    return ToolCall(name, {argument: values[0]})


def draw(rng: random.Random, options: ToolboxOptions) -> tuple[Key, str]:
    """A task's world and question, and the question in words."""
    calls = rng.randint(options.least_calls, options.most_calls)
    while True:
        tables = _tables(rng, options.people)
        key = Key(tables, _pipeline(rng, tables, max(calls, 1)), noted=calls == 0)
        if len(set(key.calls(key.question))) == max(calls, 1):  # else a call that was made answers a part again
            return key, prompt(key)


def longer(rng: random.Random, key: Key) -> Key | None:
    """The same world with a question of one call more; None where no tool takes the answer."""
    given = next((gives for name, (_, gives) in _READS.items() if name == key.question[0]), "number")
    onward = [name for name, (taken, _) in _READS.items() if taken == given]
    if key.noted:
        return Key(key.tables, key.question)
    if onward:
        return Key(key.tables, [rng.choice(onward), key.question])
    return Key(key.tables, [ADD, key.question, _pipeline(rng, key.tables, 1, "number")])


def prompt(key: Key) -> str:
    asked = f"What is {_words(key.question)}?"
    return f"{_words(key.question)} is {key.answer}. {asked}" if key.noted else asked


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
        "team_of": {name: teams[place % len(teams)] for place, name in enumerate(names)},
        "badge_of": {name: str(next(numbers)) for name in names},
        "lead_of": {team: rng.choice(names) for team in teams},
        "room_of": dict(zip(teams, rooms, strict=True)),
        "floor_of": {room: str(next(numbers)) for room in rooms},
        "phone_of": {room: str(next(numbers)) for room in rooms},
    }


def _pipeline(
    rng: random.Random, tables: Mapping[str, Mapping[str, str]], calls: int, gives: str = ""
) -> list[Question]:
    """A question of exactly ``calls`` calls whose answer is of the kind ``gives``; empty for any kind. A third of those
    of three calls and more that give a number add the answers of two shorter ones."""
    if calls >= 3 and gives in ("", "number") and rng.random() < 1 / 3:
        first = rng.randint(1, calls - 2)
        return [ADD, *(_pipeline(rng, tables, each, "number") for each in (first, calls - 1 - first))]
    fitting = [name for name, (_, given) in _READS.items() if gives in ("", given)]
    name = rng.choice(fitting)
    if calls == 1:
        return [name, rng.choice(sorted(tables[name]))]
    return [name, _pipeline(rng, tables, calls - 1, _READS[name][0])]

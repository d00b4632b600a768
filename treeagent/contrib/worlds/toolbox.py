"""Questions that need calls of several tools, in which the output of one call is an argument of the next."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pydantic.dataclasses
from pydantic import ConfigDict, Field
from pydantic_core import to_jsonable_python

from treeagent.envs.base import ToolSpec, probability
from treeagent.envs.calls import text_tool
from treeagent.envs.visit import CallRefused, ToolEnv
from treeagent.types import Split, Task, ToolCall, derive_seed

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
_PAIR = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}, "required": ["x", "y"]}
ADD, ANSWER = "add", "answer"
TOOLS: tuple[ToolSpec, ...] = (
    *(
        text_tool(name, f"Look up the {name[:-3]} of a {taken}.", taken, read_only=True)
        for name, (taken, _) in _READS.items()
    ),
    ToolSpec(ADD, "Add two numbers.", {**_PAIR, "additionalProperties": False}, read_only=True),
    text_tool(ANSWER, "Answer the question in one word. Ends the visit.", "text", answers=True),
)

Question = Any
"""A word, or a list ``[tool, argument, ...]`` in which each argument is a question itself."""
Call = tuple[str, tuple[str, ...]]
"""A tool's name and its arguments, in the order of its schema."""


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ToolboxOptions:
    """Settings of ``ToolboxEnv``."""

    most_calls: Annotated[int, Field(ge=1, le=8)] = 3
    """Most calls that a task needs before its answer; the fewest are 0, where the question states the answer."""


@dataclass(frozen=True, slots=True)
class Key:
    """The answer key of a task: the world, and the question as a pipeline of calls."""

    tables: dict[str, dict[str, str]]
    """For each tool, its results by argument."""
    question: list[Any]
    noted: bool = False
    """Whether the prompt states the answer."""

    def value(self, question: Question) -> str:
        """The answer to a question: the result of its outermost call."""
        if isinstance(question, str):
            return question
        name, values = self.call(question)
        return str(sum(map(int, values))) if name == ADD else self.tables[name][values[0]]

    def call(self, question: Sequence[Question]) -> Call:
        """The outermost call of a question."""
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
        """The calls that are due after the calls ``made``: those not yet made whose arguments are known."""
        return [] if self.noted else list(dict.fromkeys(self._due(self.question, made)))

    def _due(self, question: Question, made: Sequence[Call]) -> list[Call]:
        if isinstance(question, str) or _made(*self.call(question)) in made:
            return []
        return [each for argument in question[1:] for each in self._due(argument, made)] or [self.call(question)]


def _made(name: str, values: tuple[str, ...]) -> Call:
    """A call as it is remembered: a sum is the same in either order."""
    return name, tuple(sorted(values))


def _draw(rng: random.Random, most_calls: int) -> tuple[Key, str]:
    """Draw a task: its world with the question, and the question as text."""
    calls = rng.randint(0, most_calls)
    while True:
        names, teams = rng.sample(_NAMES, 6), rng.sample(_TEAMS, 3)
        rooms, numbers = rng.sample(_ROOMS, 3), iter(rng.sample(range(10, 100), 12))
        tables = {
            "team_of": {name: teams[index % 3] for index, name in enumerate(names)},
            "badge_of": {name: str(next(numbers)) for name in names},
            "lead_of": {team: rng.choice(names) for team in teams},
            "room_of": dict(zip(teams, rooms, strict=True)),
            "floor_of": {room: str(next(numbers)) for room in rooms},
            "phone_of": {room: str(next(numbers)) for room in rooms},
        }
        key = Key(tables, _pipeline(rng, tables, max(calls, 1)), noted=calls == 0)
        if len(set(key.calls(key.question))) == max(calls, 1):  # otherwise one call would answer two parts
            words = f"What is {_words(key.question)}?"
            return key, f"{_words(key.question)} is {key.answer}. {words}" if key.noted else words


def _words(question: Question) -> str:
    if isinstance(question, str):
        return question
    if question[0] == ADD:
        return f"the sum of {_words(question[1])} and {_words(question[2])}"
    return f"the {str(question[0]).partition('_')[0]} of {_words(question[1])}"


def _pipeline(
    rng: random.Random, tables: Mapping[str, Mapping[str, str]], calls: int, gives: str = ""
) -> list[Question]:
    """Draw a question of exactly ``calls`` calls whose answer is of the kind ``gives``, or of any kind. A third of
    those of three calls or more add the answers of two shorter questions, where a number may be given."""
    if calls >= 3 and gives in ("", "number") and rng.random() < 1 / 3:
        first = rng.randint(1, calls - 2)
        return [ADD, *(_pipeline(rng, tables, each, "number") for each in (first, calls - 1 - first))]
    name = rng.choice([name for name, (_, kind) in _READS.items() if gives in ("", kind)])
    if calls == 1:
        return [name, rng.choice(sorted(tables[name]))]
    return [name, _pipeline(rng, tables, calls - 1, _READS[name][0])]


@dataclass(frozen=True, slots=True)
class Visit:
    """The state of an episode."""

    made: tuple[Call, ...] = ()
    """The calls made so far, without repetitions."""
    answer: str | None = None


class ToolboxEnv(ToolEnv[Key, Visit]):
    """Questions about people, teams and rooms, with a new world for each task: look up, add, answer. A task needs a
    pipeline of calls such as ``team_of[mira]`` and ``add[12, 30]``, in which the output of one call is an argument of
    the next, or none, because its question states the answer. The reward is 1 for the right answer, otherwise 0."""

    options_type = ToolboxOptions
    key_type = Key
    visit_type = Visit
    opening = "ask the tools"

    def __init__(self, options: ToolboxOptions | None = None) -> None:
        self.options = options or ToolboxOptions()

    def act(self, call: ToolCall) -> str:
        table, values = self.key.tables.get(call.name), tuple(str(each).strip() for each in call.arguments.values())
        if call.name == ANSWER:
            self.visit = replace(self.visit, answer=values[0])
            return "answered"
        if table is None:
            values = str(call.arguments["x"]), str(call.arguments["y"])
            result = str(sum(map(int, values)))
        elif values[0] in table:
            result = table[values[0]]
        else:
            raise CallRefused(f"no {_READS[call.name][0]} {values[0]}")
        if (made := _made(call.name, values)) not in self.visit.made:
            self.visit = replace(self.visit, made=(*self.visit.made, made))
        return result

    def tools(self) -> Sequence[ToolSpec]:
        return TOOLS

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        found = list[Task]()
        for index in range(start, start + count):
            name = f"toolbox0-{self.options.most_calls}-6-{split}-{index}"
            key, words = _draw(random.Random(derive_seed(name)), self.options.most_calls)
            found.append(Task(name, words, split, index, to_jsonable_python(key)))
        return found

    def verdict(self) -> float | None:
        answer = self.visit.answer
        return None if answer is None else float(answer.casefold() == self.key.answer)

    def state_key(self) -> str:
        return f"{self.task.id} {sorted(self.visit.made)} {self.visit.answer}"

    def demonstrator(self, noise: float) -> "ToolboxDemonstrator":
        return ToolboxDemonstrator(self, noise)


class ToolboxDemonstrator:
    """Makes the calls of the pipeline one after another, then answers. With probability ``noise`` it makes another
    call."""

    def __init__(self, env: ToolboxEnv, noise: float) -> None:
        self._env, self._noise = env, probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        key, made = self._env.key, self._env.visit.made
        due = key.due(made)
        call = right = due[0] if due else (ANSWER, (key.answer,))
        if rng.random() < self._noise:
            wrong = [(name, (argument,)) for name, table in key.tables.items() for argument in table]
            wrong += [(ANSWER, (value,)) for table in key.tables.values() for value in table.values()]
            call = rng.choice([each for each in wrong if each not in (right, *due)])
        return f"{call[0].replace('_', ' ')} {' and '.join(call[1])}", f"{call[0]}[{', '.join(call[1])}]"

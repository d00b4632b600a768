"""How a text calls a tool, and that an environment with tools receives the same calls in every format."""

import json
import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from treeagent.envs import Env, EnvDynamics, ToolSpec
from treeagent.envs.base import StepResult, task_to_play
from treeagent.envs.calls import as_call, read_call, text_tool
from treeagent.generators.turn import make_grammar
from treeagent.pipeline.demonstrate import demonstrate
from treeagent.pipeline.shots import check_formats
from treeagent.search.node import Tree, solved
from treeagent.types import Split, Task, ToolCall

INTEGER = {"type": "integer"}
ADD = ToolSpec(
    "add", "Add two integers.", {"type": "object", "properties": {"x": INTEGER, "y": INTEGER}, "required": ["x", "y"]}
)
GUESS = ToolSpec("guess", "Guess.", {"type": "object", "properties": {"n": INTEGER}, "required": ["n"]})
FIND = ToolSpec(
    "find", "Find.", {"type": "object", "properties": {"k": INTEGER, "text": {"type": "string"}}, "required": ["text"]}
)
TOOLS = (text_tool("search", "Search.", "query"), text_tool("look", "Look."), ADD, GUESS, FIND)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("search[red kettle]", ToolCall("search", {"query": "red kettle"})),
        ("search[a, b [c]]", ToolCall("search", {"query": "a, b [c]"})),
        ("search[]", ToolCall("search", {"query": ""})),
        ("look", ToolCall("look", {})),
        ("guess[7]", ToolCall("guess", {"n": 7})),
        ("add[1, -2]", ToolCall("add", {"x": 1, "y": -2})),
        ('add {"x": 1}', ToolCall("add", {"x": 1})),
        ("find[red, blue]", ToolCall("find", {"text": "red, blue"})),
    ],
)
def test_a_text_that_names_a_tool_becomes_a_call_of_it(text: str, call: ToolCall) -> None:
    assert as_call(text, TOOLS) == call


DEFINED = {"Page": {"type": "integer"}, "Mode": {"enum": ["a", "3"]}}
SCHEMAS: Sequence[tuple[object, Callable[[object], bool]]] = (
    ({}, lambda value: True),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, lambda value: value is None or type(value) is int),
    ({"type": ["string", "integer"]}, lambda value: type(value) in (str, int)),
    ({"oneOf": [{"const": 3}, {"type": "boolean"}]}, lambda value: type(value) is bool or value == 3),
    ({"$ref": "#/$defs/Page"}, lambda value: type(value) is int),
    ({"allOf": [{"$ref": "#/$defs/Mode"}]}, lambda value: value in ("a", "3")),
    ({"enum": [1, "a", None]}, lambda value: value is None or value == "a" or (type(value) is int and value == 1)),
    ({"enum": ["a", "b"]}, lambda value: value in ("a", "b")),
    ({"type": "array"}, lambda value: isinstance(value, list)),
)
VALUES = (3, 1, True, None, "a", "3", "b c", 2.5, [1], {"k": 1})


@pytest.mark.parametrize("format", ["react", "tools", "tags", "llama", "mistral"])
@pytest.mark.parametrize(("schema", "allows"), SCHEMAS)
def test_one_value_means_the_same_in_every_format(
    schema: dict[str, object], allows: Callable[[object], bool], format: str
) -> None:
    """A call is accepted where its schema allows the value, whatever wrote it; brackets read it as the format does."""
    for name, others in (("page", False), ("more", schema)):
        parameters = {"properties": {"page": schema}, "additionalProperties": others, "$defs": DEFINED}
        tools = (ToolSpec("open", "Open a page.", {"type": "object", **parameters}),)
        grammar = make_grammar(format, tools=tools)
        for value in VALUES:
            call = ToolCall("open", {name: value})
            read = grammar.read(grammar.write("", call))
            told = read.error or read_call(read.call, tools)
            number = value == "3" and allows(3)  # a text without quotes is then a number
            assert (told == call) == allows(value) or (number and format == "tags"), (value, told)
            if name == "page" and allows(value) and not number:
                text = value if isinstance(value, str) else json.dumps(value)
                assert read_call(f"open[{text}]", tools) == call


def test_what_a_value_must_be_is_told() -> None:
    tool = ToolSpec("open", "", {"type": "object", "properties": {"mode": {"enum": ["a", "b"]}}})
    assert read_call("open[c]", (tool,)) == "mode of open must be one of ['a', 'b']"
    assert read_call(ToolCall("open", {"mode": 3}), (tool,)) == "mode of open must be of type string"


@pytest.mark.parametrize("name", ["num guess:@2", "search[x]"])
def test_a_tool_may_have_any_name(name: str) -> None:
    tools = (ToolSpec(name, "Guess.", GUESS.parameters), *TOOLS[:1])
    assert read_call(f"{name}[7]", tools) == ToolCall(name, {"n": 7})
    assert read_call(f' {name} {{"n": 7}} ', tools) == ToolCall(name, {"n": 7})


@pytest.mark.parametrize(
    "text", ["go north", "up up", "seek[red]", "add[1]", "add[1, 2, 3]", "look[around]", "search {red}", ""]
)
def test_a_text_that_calls_no_tool_stays_a_text(text: str) -> None:
    assert as_call(text, TOOLS) == text
    assert isinstance(read_call(text, TOOLS), str)


@pytest.mark.parametrize(
    ("text", "command"), [("go north", "go north"), ("act[go north]", "go north"), ("seek[red]", "seek[red]")]
)
def test_a_text_is_what_the_only_tool_is_called_with_if_that_takes_one_text(text: str, command: str) -> None:
    act = text_tool("act", "Act.", "command")
    assert as_call(text, (act,)) == ToolCall("act", {"command": command})
    assert as_call(text, (act, text_tool("look", "Look."))) == (text if "act[" not in text else as_call(text, (act,)))
    assert as_call("go north", (GUESS,)) == "go north"  # the tool takes a number


@pytest.mark.parametrize("text", ["guess[seven]", "search", 'add {"x": 1}', 'add {"x": 1, "y": "2"}'])
def test_a_call_that_does_not_fit_its_schema_has_a_reason(text: str) -> None:
    call = as_call(text, TOOLS)
    assert isinstance(call, ToolCall)
    assert isinstance(read_call(call, TOOLS), str)
    assert read_call(call, TOOLS) == read_call(text, TOOLS)


class Strict(Env):
    """Add two numbers. It accepts tool calls only, no texts."""

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return [Task(f"sum-{split}-{each}", f"{each} + 1", split, each) for each in range(start, start + count)]

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self.task, self.total = task_to_play(self, seed, options), 0
        return "ready", {}

    def tools(self) -> Sequence[ToolSpec]:
        return (ADD,)

    def step(self, action: str | ToolCall) -> StepResult:
        if not isinstance(action, ToolCall):
            return "no tool call", 0.0, False, False, {"tool_error": "no tool call"}
        x, y = action.arguments["x"], action.arguments["y"]
        assert isinstance(x, int) and isinstance(y, int)
        self.total = x + y
        return str(self.total), self.verify(), True, False, {}

    def verify(self) -> float:
        return float(self.total == self.task.seed + 1)

    def demonstrator(self, noise: float) -> "Adder":
        return Adder(self)


class Adder:
    def __init__(self, env: Strict) -> None:
        self.env = env

    def act(self, rng: random.Random) -> tuple[str, str]:
        return "add", f'add {{"x": {self.env.task.seed}, "y": 1}}'


def demonstrated(format: str) -> list[Tree]:
    env = Strict()
    tasks = env.tasks("train", 3)
    dynamics = EnvDynamics(env, max_steps=2)
    return list(demonstrate(dynamics, env.demonstrator(0.0), tasks, seed=0, grammar=make_grammar(format)))


@pytest.mark.parametrize("format", ["react", "tools"])
def test_an_environment_written_for_tool_calls_is_solved_in_every_format(format: str) -> None:
    trees = demonstrated(format)
    assert [tree.error for tree in trees] == ["", "", ""]
    assert all(map(solved, trees))


class Locked(Strict):
    """Refuses every call."""

    def step(self, action: str | ToolCall) -> StepResult:
        return "locked", 0.0, False, False, {"tool_error": "locked"}


def test_the_check_of_formats_names_the_format_that_refuses_and_the_refusal() -> None:
    tasks = Strict().tasks("train", 2)
    assert check_formats(Strict(), tasks) == ([], [])
    refused, _ = check_formats(Locked(), tasks)
    assert len(refused) == 2 and all("locked" in each and "100 calls" in each for each in refused)

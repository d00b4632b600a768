"""The Berkeley Function-Calling Leaderboard's multi-turn tasks (version 4; Patil et al. 2025) with exact snapshots."""

import ast
import copy
import functools
import importlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal

import pydantic.dataclasses
from pydantic import ConfigDict, Field

from treeagent.contrib.worlds.tasksets import TaskSetEnv, package, split_of, still_due, written
from treeagent.envs.base import ToolSpec
from treeagent.envs.calls import read_call, text_tool
from treeagent.envs.visit import CallRefused
from treeagent.types import ToolCall, UserError

_VERSION = "2026.3.23"
Api = Literal[
    "GorillaFileSystem",
    "MathAPI",
    "MessageAPI",
    "TicketAPI",
    "TradingBot",
    "TravelAPI",
    "TwitterAPI",
    "VehicleControlAPI",
]
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_RESPOND = text_tool("respond", "Answer the user. Ends the user's turn.", "message")
_MORE_TOOLS = "I have updated some more functions you can choose from. What about now?"
"""What the leaderboard says when it gives a tool that was withheld."""
_LARGEST = 10_000
"""Largest exponent or precision: larger ones of MathAPI take minutes."""


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class BfclOptions:
    """Settings of ``BfclEnv``."""

    category: Literal["base", "long_context", "miss_func", "miss_param"] = "base"
    """The leaderboard's category: plain requests, long results, a tool that comes late, a detail that comes late."""
    apis: tuple[Api, ...] = Field(default=("TradingBot",), min_length=1)
    """APIs whose tools the agent has. The tasks are those that need no other."""


@dataclass(frozen=True, slots=True)
class Visit:
    """The state of an episode."""

    apis: Mapping[str, Any]
    """The package's API objects. A call works on a copy."""
    turn: int = 0
    right: bool = True
    """Whether every turn so far left the state and got the results that the solution does."""
    results: tuple[str, ...] = ()
    """What all calls returned."""
    calls: tuple[ToolCall, ...] = ()
    """The calls of this turn."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of the user, and its solution."""

    request: str
    calls: tuple[ToolCall, ...]
    states: Mapping[str, Mapping[str, Any]]
    """The public attributes of each API after the solution."""
    results: tuple[str, ...]


class BfclEnv(TaskSetEnv[Visit]):
    """BFCL's multi-turn tasks: call the tools of up to eight APIs as a user asks, turn by turn.

    ``respond[message]`` ends a turn. The reward is 1 at the end if after each turn all APIs were as the solution leaves
    them and had returned its results; a turn without a solution is not judged, as on the leaderboard. Texts of a model
    are parsed, never evaluated."""

    options_type = BfclOptions
    visit_type = Visit
    idle = "respond[Done.]"

    def __init__(self, options: BfclOptions | None = None) -> None:
        self.options = options or BfclOptions()
        self.name = f"bfcl-{self.options.category}"
        package("bfcl_eval", "bfcl-eval", _VERSION, f"--no-deps bfcl-eval=={_VERSION}")
        self._tables = importlib.import_module("bfcl_eval.constants.executable_backend_config")
        files = [self._tables.MULTI_TURN_FUNC_DOC_FILE_MAPPING[api] for api in self.options.apis]
        documents = [each for file in files for each in _rows(f"multi_turn_func_doc/{file}")]
        self.specs = (
            _RESPOND,
            *(ToolSpec(each["name"], each["description"], _schema(each["parameters"])) for each in documents),
        )
        self._entries = {
            name: entry
            for name, entry in _entries(self.options.category).items()
            if set(entry["involved_classes"]) <= set(self.options.apis) and self._can_be_solved(entry)
        }
        # One scenario has the same split in all categories.
        self.items = {name: split_of(name.rpartition("_")[2]) for name in self._entries}
        if not self.items:
            raise UserError(f"no task of {self.name} needs only {', '.join(self.options.apis)}: name more of apis")
        self.turns = functools.lru_cache(maxsize=128)(self._turns)

    def prompt(self, item: str) -> str:
        return "Do what the user asks by calling tools. Respond when a request is done or a detail is missing."

    def start(self, item: str) -> tuple[Visit, str]:
        return Visit(self._made(self._entries[item])), self._request(item, 0)

    def act(self, call: ToolCall) -> str:
        visit, item = self.visit, self.key.item
        if call.name == "respond":
            self.visit = after = replace(visit, right=self._is_right(), turn=visit.turn + 1, calls=())
            return "The user leaves." if self.verdict() is not None else self._request(item, after.turn)
        if call.name in self._withheld(item, visit.turn):
            raise CallRefused(f"{call.name} is not available yet")
        sizes = [call.arguments.get(key) for key in ("exponent", "precision")]
        if any(isinstance(size, int | float) and abs(size) > _LARGEST for size in sizes):
            raise CallRefused(f"exponent and precision are at most {_LARGEST}")
        apis = copy.deepcopy(dict(visit.apis))
        result = _run(apis, call)
        self.visit = replace(visit, apis=apis, results=(*visit.results, result), calls=(*visit.calls, call))
        if result.startswith("Error during execution"):
            raise CallRefused(result)
        return result

    def verdict(self) -> float | None:
        visit = self.visit
        return float(visit.right) if visit.turn >= len(self.turns(self.key.item)) else None

    def plan(self) -> Sequence[str]:
        turns, visit = self.turns(self.key.item), self.visit
        return [*still_due(turns[min(visit.turn, len(turns) - 1)].calls, visit.calls), self.idle]

    def slips(self) -> Sequence[str]:
        others = (written(call) for turn in self.turns(self.key.item) for call in turn.calls)
        return [*others, *super().slips()]

    def _is_right(self) -> bool:
        visit, turn = self.visit, self.turns(self.key.item)[self.visit.turn]
        if not turn.calls:
            return visit.right
        found = bool(visit.calls) and not Counter(turn.results) - Counter(visit.results)
        return visit.right and found and all(_is_same(visit.apis[name], state) for name, state in turn.states.items())

    def _request(self, item: str, turn: int) -> str:
        withheld = self._withheld(item, turn)
        later = f"\n(not available yet: {', '.join(withheld)})" if withheld else ""
        return f"User: {self.turns(item)[turn].request}{later}"

    def _withheld(self, item: str, turn: int) -> list[str]:
        missed: Mapping[str, list[str]] = self._entries[item].get("missed_function", {})
        return [name for index, names in missed.items() if turn < int(index) for name in names]

    def _made(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        made = {}
        for name in entry["involved_classes"]:
            install = f"--no-deps bfcl-eval=={_VERSION} mpmath"
            source = package(self._tables.CLASS_FILE_PATH_MAPPING[name], "bfcl-eval", _VERSION, install)
            made[name] = getattr(source, name)()
            if name != "MathAPI":
                given = copy.deepcopy(entry["initial_config"].get(name, {}))
                made[name]._load_scenario(given, long_context=self.options.category == "long_context")
        return made

    def _turns(self, item: str) -> Sequence[Turn]:
        entry, turns = self._entries[item], list[Turn]()
        apis = self._made(entry)
        for messages, texts in zip(entry["question"], entry["solution"], strict=True):
            request = "\n".join(each["content"] for each in messages) or _MORE_TOOLS
            calls = tuple(self._solution(text) for text in texts)
            results = tuple(_run(apis, call) for call in calls)
            turns.append(
                Turn(request, calls, {name: _public(copy.deepcopy(api)) for name, api in apis.items()}, results)
            )
        return turns

    def _solution(self, text: str) -> ToolCall:
        """A call of the solution, which the package writes in Python."""
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        tool = next(each for each in self.specs if each.name == call.func.id)
        named = {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg}
        first: Any = tool.parameters["properties"]
        arguments = dict(zip(first, map(ast.literal_eval, call.args), strict=False)) | named
        return ToolCall(tool.name, json.loads(json.dumps(arguments)))

    def _can_be_solved(self, entry: Mapping[str, Any]) -> bool:
        """Whether the tools' schemas allow the solution, and it calls no tool before that is there."""
        late = {name: int(turn) for turn, names in entry.get("missed_function", {}).items() for name in names}
        calls = [(turn, self._solution(text)) for turn, texts in enumerate(entry["solution"]) for text in texts]
        return all(isinstance(read_call(call, self.specs), ToolCall) for _, call in calls) and not any(
            turn < late.get(call.name, 0) for turn, call in calls
        )


def _rows(name: str) -> list[dict[str, Any]]:
    text = (resources.files("bfcl_eval") / "data" / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@functools.cache
def _entries(category: str) -> dict[str, dict[str, Any]]:
    name = f"BFCL_v4_multi_turn_{category}.json"
    solutions = {each["id"]: each["ground_truth"] for each in _rows(f"possible_answer/{name}")}
    return {each["id"]: {**each, "solution": solutions[each["id"]]} for each in _rows(name)}


def _schema(value: Any) -> Any:
    """The package's schemas with the names of JSON's types."""
    if isinstance(value, list):
        return [_schema(each) for each in value]
    if not isinstance(value, dict):
        return value
    named = {key: _schema(each) for key, each in value.items() if (key, each) != ("type", "any")}
    if isinstance(named.get("type"), str):
        named["type"] = _TYPES.get(named["type"], named["type"])
    return named


def _run(apis: Mapping[str, Any], call: ToolCall) -> str:
    """Call the method that a tool names. The result, or the error, as the text that the package makes of it."""
    owner = next((api for api in apis.values() if hasattr(type(api), call.name)), None)
    if owner is None:
        return f"Error during execution: {call.name} belongs to no API of this task"
    try:
        result = getattr(owner, call.name)(**copy.deepcopy(dict(call.arguments)))
        try:
            return json.dumps(result) if isinstance(result, dict) else str(result)
        except TypeError:
            return str(result)
    except Exception as error:  # whatever the API raises is its answer
        return f"Error during execution: {error}"


def _public(api: Any) -> dict[str, Any]:
    return {key: value for key, value in vars(api).items() if not key.startswith("_")}


def _is_same(api: Any, state: Mapping[str, Any]) -> bool:
    try:
        return all(getattr(api, key) == value for key, value in state.items())
    except RecursionError:  # a folder that was moved into itself
        return False

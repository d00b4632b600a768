"""The environment of the Python code tool."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pydantic.dataclasses
from pydantic import ConfigDict, Field

from treeagent.contrib.worlds.python.sandbox import Run, Sandbox
from treeagent.contrib.worlds.python.tasks import Exercise, draw_task
from treeagent.envs.base import ToolSpec, probability
from treeagent.envs.calls import text_tool
from treeagent.envs.visit import ToolEnv
from treeagent.types import Split, Task, ToolCall


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PythonOptions:
    """Settings of ``PythonEnv``."""

    difficulty: int = Field(default=2, ge=1, le=3)
    """1: filter numbers by a condition and reduce them to a result. 2: also transform each number. 3: filter by two
    conditions."""
    seconds: float = Field(default=10.0, gt=0, le=60)
    """Most wall-clock time of a run, in seconds. CPU time is limited to 2 seconds."""
    megabytes: int = Field(default=256, ge=64, le=4096)
    """Most memory of a run, in MiB."""
    shown: int = Field(default=300, ge=20)
    """Most characters of a run's output that the agent reads."""


_TOOLS = (
    text_tool("run", "Run Python code and read what it prints. Every run starts afresh.", "code", read_only=True),
    text_tool("test", "Run code that defines f on the examples.", "code", read_only=True),
    text_tool("submit", "Hand in code that defines f. Ends the visit.", "code", answers=True),
)


@dataclass(frozen=True, slots=True)
class Visit:
    """The state of an episode. Runs leave nothing behind."""

    tested: str = ""
    """The last tested code. Only demonstrators use it."""
    verdict: float | None = None
    """Verdict on the submitted code."""


class PythonEnv(ToolEnv[Exercise, Visit]):
    """Write a Python function, try it in a sandbox, and submit it. The reward is 1 if it passes all hidden tests,
    otherwise 0.

    Calls are ``run[code]``, ``test[code]`` and ``submit[code]``, or tool calls; code of several lines is written as
    ``run {"code": "..."}``. The expected values of the tests never enter the sandbox."""

    options_type = PythonOptions
    key_type = Exercise
    visit_type = Visit
    opening = "ready"

    def __init__(self, options: PythonOptions | None = None) -> None:
        self.options = options or PythonOptions()
        self._sandbox = Sandbox(self.options.seconds, self.options.megabytes)
        self._sandbox.run("")  # check that code can be run on this machine

    def act(self, call: ToolCall) -> str:
        code, exercise = str(call.arguments["code"]), self.key
        match call.name:
            case "submit":
                run = self._sandbox.run(code, [(argument,) for argument, _ in exercise.tests])
                verdict = float(_is_equal(run.returned, [value for _, value in exercise.tests]))
                self.visit = replace(self.visit, verdict=verdict)
                return "handed in"
            case "test":
                self.visit = replace(self.visit, tested=code)
                run = self._sandbox.run(code, [(argument,) for argument, _ in exercise.examples])
                return self._shown(run) if run.returned is None else _failed_examples(run.returned, exercise)
        return self._shown(self._sandbox.run(code))

    def tools(self) -> Sequence[ToolSpec]:
        return _TOOLS

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return [draw_task(split, index, self.options.difficulty) for index in range(start, start + count)]

    def verdict(self) -> float | None:
        return self.visit.verdict

    def demonstrator(self, noise: float) -> "PythonDemonstrator":
        return PythonDemonstrator(self, noise)

    def _shown(self, run: Run) -> str:
        output, most = run.output.strip(), self.options.shown
        if len(output) > most:
            output = f"{output[:most]} and {len(output) - most} more characters"
        return "\n".join(filter(None, (output, f"error: {run.error}" if run.error else ""))) or "no output"


def _failed_examples(returned: Sequence[object], exercise: Exercise) -> str:
    wrong = [
        f"f({argument}) gives {found!r:.60}, not {value}"
        for found, (argument, value) in zip(returned, exercise.examples, strict=True)
        if not _is_equal(found, value)
    ]
    return "; ".join(wrong) or "all examples pass"


def _is_equal(found: Any, expected: Any) -> bool:
    """Compare two JSON values. Unlike ``==``, True does not equal 1."""
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(_is_equal, found, expected))
    return type(found) is type(expected) and bool(found == expected)


_SLIPS = ((">", "<"), ("<", ">"), ("==", "!="), ("!=", "=="), ("*", "+"), ("+", "-"), ("max", "min"), ("min", "max"))


class PythonDemonstrator:
    """Tests the solution on the examples, then submits it. With probability ``noise`` its code has an error, such as
    another number or a reversed comparison. After a test of erroneous code, it tests again.
    """

    def __init__(self, env: PythonEnv, noise: float) -> None:
        self._env, self._noise = env, probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        gold, tested = self._env.key.gold, self._env.visit.tested
        code = _slip(gold, rng) if rng.random() < self._noise else gold
        return ("it works", f"submit[{code}]") if tested == gold else ("try it", f"test[{code}]")


def _slip(gold: str, rng: random.Random) -> str:
    slips = [gold.replace(old, new, 1) for old, new in _SLIPS if old in gold]
    slips += [gold[: at.start()] + str(int(at[0]) + 1) + gold[at.end() :] for at in re.finditer(r"\d+", gold)]
    return rng.choice([*slips, gold.replace("return ", "", 1)])

"""The environment of faults in real packages."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile

import pydantic.dataclasses
from pydantic import ConfigDict, Field

from treeagent.contrib.worlds.swe.tasks import Drawn, Package, Repair, holds, opened, package
from treeagent.contrib.worlds.tasksets import Gold
from treeagent.envs.base import ToolSpec
from treeagent.envs.calls import text_tool
from treeagent.envs.visit import CallRefused, ToolEnv
from treeagent.types import Split, Task, ToolCall, UserError


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class SweOptions:
    """Settings of ``SweEnv``."""

    packages: tuple[str, ...] = Field(default=("more-itertools", "packaging", "sortedcontainers"), min_length=1)
    """Installed distributions in pure Python whose docstrings have examples, and whose modules can be loaded without
    files, processes and threads."""


@dataclass(frozen=True, slots=True)
class Visit:
    """The state of an episode: the files that differ from the start."""

    changed: Mapping[str, str] = field(default_factory=dict[str, str])
    last: str = ""
    """The tool that was called last. Only demonstrators use it."""
    verdict: float | None = None


_LINES, _HITS, _SHOWN, _LONGEST, _SCRIPT = 40, 20, 2000, 2**18, "script.py"
_PLACE = {"path": {"type": "string"}, "line": {"type": "integer", "minimum": 1}}
_TOOLS = (
    text_tool("search", "Find the lines that contain a text.", "text", read_only=True),
    ToolSpec(
        "read",
        f"Read {_LINES} lines of a file, from a line on.",
        {"type": "object", "properties": _PLACE, "required": ["path", "line"], "additionalProperties": False},
        read_only=True,
    ),
    text_tool("edit", "Replace a passage of a file, which occurs once, by another.", "path", "old", "new"),
    text_tool("run", "Run Python code beside the package and read what it prints.", "code", read_only=True),
    text_tool("submit", "Hand in the package. Ends the visit."),
)


class SweEnv(ToolEnv[Repair, Visit]):
    """Repair an installed package that got one fault. The reward is 1 if all hidden calls give the right values.

    The sources are copied from the installed distribution, into a sandbox that can only compute. The right values of
    the calls never enter it: they are compared outside, with the values that the unchanged package gave."""

    options_type = SweOptions
    key_type = Repair
    visit_type = Visit
    opening = "the package is open"
    idle = "submit[]"
    """The call of an agent that does nothing."""

    def __init__(self, options: SweOptions | None = None) -> None:
        self.options = options or SweOptions()
        self._drawn = _drawn(self.options.packages)

    def tools(self) -> Sequence[ToolSpec]:
        return _TOOLS

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return self._drawn.tasks(split, start + count)[start:]

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        answer = super().reset(seed=seed, options=options)
        if (found := self._package.version) != (wanted := self.key.version):
            raise UserError(
                f"{self.task.id} needs {self.key.package} {wanted}, not {found}: install it, or draw new tasks"
            )
        return answer

    def files(self) -> dict[str, str]:
        """The files of the package now, by path."""
        return {**self.key.fault.applied(self._package.files), **self.visit.changed}

    def act(self, call: ToolCall) -> str:
        said, files = {name: str(value) for name, value in call.arguments.items()}, self.files()
        self.visit = replace(self.visit, last=call.name)
        match call.name:
            case "search":
                lines = [(path, *each) for path in sorted(files) for each in enumerate(files[path].split("\n"), 1)]
                found = [f"{path}, line {at}: {line.strip()}" for path, at, line in lines if said["text"] in line]
                more = [f"and {len(found) - _HITS} more"] if len(found) > _HITS else []
                return "\n".join([*found[:_HITS], *more]) or "no line contains it"
            case "read":
                lines_of, first = _known(files, said["path"]).split("\n"), max(int(said["line"]) - 1, 0)
                return "\n".join(lines_of[first : first + _LINES]) or f"it has {len(lines_of)} lines"
            case "edit":
                text = _known(files, said["path"])
                if text.count(said["old"]) != 1:
                    raise CallRefused(f"old occurs {text.count(said['old'])} times in {said['path']}, not once")
                if len(text := text.replace(said["old"], said["new"])) > _LONGEST:
                    raise CallRefused(f"a file has at most {_LONGEST} characters")
                self.visit = replace(self.visit, changed={**self.visit.changed, said["path"]: text})
                return "edited"
            case "run":
                ran = opened(self._package, {**files, _SCRIPT: said["code"]}).run(f"python {_SCRIPT}")
                return ran.output.strip()[:_SHOWN] or "no output"
        self.visit = replace(self.visit, verdict=float(holds(self._package, files, self.key.checks)))
        return "handed in"

    def verdict(self) -> float | None:
        return self.visit.verdict

    def plan(self) -> Sequence[str]:
        """What the reverse of the fault takes from here; the last call ends the task."""
        fault, last, run = self.key.fault, self.visit.last, f"run {json.dumps({'code': self.key.example.script})}"
        if (text := self.files()[fault.path]) == (right := self._package.files[fault.path]):
            return ["submit[]"] if last == "run" else [run, "submit[]"]
        old, new = passage(text, right)
        steps = [
            f"search[def {fault.function}]",
            f"read {json.dumps({'path': fault.path, 'line': max(fault.line - _LINES // 2, 1)})}",
            f"edit {json.dumps({'path': fault.path, 'old': old, 'new': new})}",
        ]
        return [*steps[{"search": 1, "read": 2}.get(last, 0) :], run, "submit[]"]

    def slips(self) -> Sequence[str]:
        """Wrong calls for a demonstrator that errs: later and useless ones, and one more fault."""
        fault = self.key.fault
        old, _ = passage(self.files()[fault.path], self._package.files[fault.path])
        worse = {"path": fault.path, "old": old, "new": f"{old} or None"}
        return [*self.plan()[1:], f"search[{fault.right}]", f"edit {json.dumps(worse)}"]

    def demonstrator(self, noise: float) -> Gold:
        return Gold(self.plan, self.slips, noise)

    @property
    def _package(self) -> Package:
        return package(self.key.package)


_drawn = lru_cache(maxsize=4)(Drawn)
"""Environments of one process share their tasks: to make one takes seconds."""


def passage(text: str, wanted: str) -> tuple[str, str]:
    """The lines in which ``text`` differs, with as many before as make them unique, and what takes their place."""
    now, then = text.split("\n"), wanted.split("\n")
    start = _equal(now, then)
    rest = min(_equal(now[::-1], then[::-1]), len(now) - start, len(then) - start)
    while text.count("\n".join(now[start : len(now) - rest])) > 1:
        start -= 1
    return "\n".join(now[start : len(now) - rest]), "\n".join(then[start : len(then) - rest])


def _equal(one: Sequence[str], other: Sequence[str]) -> int:
    """How many of the first elements are equal."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def _known(files: Mapping[str, str], path: object) -> str:
    if str(path) not in files:
        raise CallRefused(f"no file {path}")
    return files[str(path)]

"""The environment of a sandbox: repair a small repository with a shell, edits and tests."""

import json
import random
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic.dataclasses
from pydantic import ConfigDict, Field, FilePath, TypeAdapter, ValidationError

from treeagent.contrib.worlds import some
from treeagent.contrib.worlds.sandbox.box import Box, PythonBox
from treeagent.contrib.worlds.sandbox.exercises import repair_task, slip
from treeagent.contrib.worlds.sandbox.hosted import HostedBox
from treeagent.contrib.worlds.sandbox.shell import ContainerBox, ShellBox
from treeagent.contrib.worlds.tasksets import Gold, split_of, written
from treeagent.envs.base import ToolSpec
from treeagent.envs.calls import text_tool
from treeagent.envs.visit import CallRefused, ToolEnv
from treeagent.types import REACHES_OUT, Split, Task, ToolCall, UserError


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class SandboxOptions:
    """Settings of ``SandboxEnv``."""

    tasks: FilePath | None = None
    """Your own tasks instead of the generated ones: a JSONL file with ``id``, ``prompt``, ``files`` (path to text),
    ``checks`` ([module, function, arguments, value] each, which the agent never sees) and ``solution`` (path to
    text)."""
    box: Literal["python", "shell", "container", "hosted"] = "python"
    """``PythonBox``; ``ShellBox``, which wants bubblewrap; ``ContainerBox``; ``HostedBox``."""
    container: Annotated[tuple[str, ...], REACHES_OUT] = ("docker", "run", "python:3.12-slim")
    """The command that runs the image of a ``ContainerBox``."""
    url: Annotated[str, REACHES_OUT] = "http://127.0.0.1:8889"
    """Address of the controller of a ``HostedBox``."""
    key: Annotated[str, REACHES_OUT] = "FORKD_TOKEN"
    """The environment variable that holds its key, if it wants one."""
    image: str = "python"
    """The snapshot that a ``HostedBox`` starts from."""
    seconds: float = Field(default=10.0, gt=0, le=60)
    """Most wall-clock time of a command, in seconds. In a ``PythonBox``, CPU time is limited to 2 seconds."""
    megabytes: int = Field(default=256, ge=64, le=4096)
    """Most memory of a process, in MiB."""
    shown: int = Field(default=2000, ge=20)
    """Most characters of an output that the agent reads."""


@pydantic.dataclasses.dataclass(frozen=True)
class Repository:
    """The answer key: a repository, hidden checks of what its functions return, and files that pass them."""

    files: Mapping[str, str]
    checks: tuple[tuple[str, str, list[Any], Any], ...]
    solution: Mapping[str, str]


@pydantic.dataclasses.dataclass(frozen=True)
class _Row(Repository):
    """A line of a file of tasks."""

    id: str = ""
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class Visit:
    """The state of an episode."""

    box: object = field(default_factory=dict[str, str])
    """A snapshot of the box."""
    tested: bool = False
    """Whether the tests passed after the last edit. Only demonstrators use it."""
    verdict: float | None = None


_TEST = "python -m pytest"
_TOOLS = (
    text_tool("shell", "Run a command, such as ls, cat FILE, grep TEXT FILE, rm FILE, python FILE.", "command"),
    text_tool("write", "Write a file.", "path", "text"),
    text_tool("edit", "Replace a passage of a file, which occurs once, by another.", "path", "old", "new"),
    text_tool("test", "Run the tests of the repository."),
    text_tool("submit", "Hand in the repository. Ends the visit."),
)


class SandboxEnv(ToolEnv[Repository, Visit]):
    """Repair a repository in a sandbox, with a shell, edits and tests. The reward is 1 if all hidden checks hold.

    The generated tasks have one function with a fault, and tests that may not show it. The checks are calls; their
    expected values never enter the sandbox. ``make_box`` makes a sandbox of your own."""

    options_type = SandboxOptions
    key_type = Repository
    visit_type = Visit
    opening = "the repository is open"
    idle = "submit[]"
    """The call of an agent that does nothing."""

    def __init__(self, options: SandboxOptions | None = None, make_box: Callable[[], Box] | None = None) -> None:
        self.options = options or SandboxOptions()
        its = self.options
        boxes: Mapping[str, Callable[[float, int], Box]] = {
            "python": PythonBox,
            "shell": ShellBox,
            "container": partial(ContainerBox, its.container),
            "hosted": partial(HostedBox, its.url, its.key, its.image),
        }
        self.box = make_box() if make_box else boxes[its.box](its.seconds, its.megabytes)
        self._checker = PythonBox(self.options.seconds, self.options.megabytes)
        self._checker.values([])  # where code cannot be run safely, it says so here and not in an episode
        self._own = None if self.options.tasks is None else own_tasks(self.options.tasks)

    def tools(self) -> Sequence[ToolSpec]:
        return _TOOLS

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        if self._own is None:
            return [repair_task(split, index) for index in range(start, start + count)]
        found = [task for task in self._own if task.split == split]
        return some(found, split, count, start, str(self.options.tasks))

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        answer = super().reset(seed=seed, options=options)
        self.box.start(self.key.files)
        self.visit = Visit(self.box.snapshot())
        return answer

    def act(self, call: ToolCall) -> str:
        visit, arguments = self.visit, {key: str(value) for key, value in call.arguments.items()}
        self.box.restore(visit.box)
        match call.name:
            case "submit":
                self.visit = replace(visit, verdict=float(passes(self.files(), self.key.checks, self._checker)))
                return "handed in"
            case "write":
                return self._write(arguments["path"], arguments["text"])
            case "edit":
                text, old = self._read(arguments["path"]), arguments["old"]
                if text.count(old) != 1:
                    raise CallRefused(f"old occurs {text.count(old)} times in {arguments['path']}, not once")
                return self._write(arguments["path"], text.replace(old, arguments["new"]))
        ran = self.box.run(_TEST if call.name == "test" else arguments["command"])
        self.visit = Visit(self.box.snapshot(), tested=call.name == "test" and ran.code == 0)
        output, most = ran.output.strip() or "no output", self.options.shown
        shown = output if len(output) <= most else f"{output[:most]} and {len(output) - most} more characters"
        return f"{shown}\n(exit code {ran.code})" if ran.code else shown

    def verdict(self) -> float | None:
        return self.visit.verdict

    def files(self) -> dict[str, str]:
        """The files of the box now, by path."""
        self.box.restore(self.visit.box)
        paths = self.box.run("find . -type f").output.splitlines()
        return {path.removeprefix("./"): self._read(path) for path in paths}

    def plan(self) -> Sequence[str]:
        """What the solution takes from here: its files, a run of the tests, and the end."""
        files = self.files()
        writes = [_write(*each) for each in self.key.solution.items() if files.get(each[0]) != each[1]]
        return [*writes, *(["test[]"] if writes or not self.visit.tested else []), self.idle]

    def slips(self) -> Sequence[str]:
        """Wrong calls for a demonstrator that errs: files with an error, looks at what is there, and an early end."""
        wrong = [_write(path, slip(text, random.Random(path))) for path, text in self.key.solution.items()]
        return [*wrong, *(f"shell[cat {path}]" for path in self.key.solution), "shell[ls]", "test[]", self.idle]

    def demonstrator(self, noise: float) -> Gold:
        return Gold(self.plan, self.slips, noise)

    def close(self) -> None:
        self.box.close()

    def _read(self, path: str) -> str:
        ran = self.box.run(shlex.join(["cat", path]))
        if ran.code:
            raise CallRefused(ran.output)
        return ran.output

    def _write(self, path: str, text: str) -> str:
        ran = self.box.run(f"printf %s {shlex.quote(text)} > {shlex.quote(path)}")
        if ran.code:
            raise CallRefused(ran.output)
        self.visit = Visit(self.box.snapshot())
        return "written"


def _write(path: str, text: str) -> str:
    return written(ToolCall("write", {"path": path, "text": text}))


def passes(files: Mapping[str, str], checks: Sequence[tuple[str, str, list[Any], Any]], box: PythonBox) -> bool:
    """Whether the functions in files return the expected values. True is not 1, and 1.0 is not 1."""
    box.start(files)
    found = box.values([(module, name, arguments) for module, name, arguments, _ in checks])
    return json.dumps(found) == json.dumps([["value", value] for *_, value in checks])


def own_tasks(path: Path) -> list[Task]:
    """The tasks of a user's file. Each is proven first: the checks fail before, and hold with the solution."""
    form, box, tasks = TypeAdapter(_Row), PythonBox(), list[Task]()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = form.validate_json(line)
        except ValidationError as error:
            raise UserError(f"{path}, line {number}, is no task: {error.errors()[0]['msg']}") from error
        if passes(row.files, row.checks, box) or not passes({**row.files, **row.solution}, row.checks, box):
            raise UserError(f"{path}, line {number}: the checks must fail before the solution and hold with it")
        data = {"files": dict(row.files), "checks": [list(each) for each in row.checks], "solution": dict(row.solution)}
        tasks.append(Task(row.id, row.prompt, split_of(row.id), number, data))
    return tasks

"""Calls that wait for a person's approval, and ``treeagent approve``, the person's terminal. In a folder,
``ID.ask.json`` holds a request and ``ID.answer.json`` its answer, which is written once. Equal requests have equal ids,
so a resumed run or a replayed path gets the same answers."""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

import orjson
import pydantic.dataclasses
import typer
from pydantic import ConfigDict, Field, TypeAdapter
from rich.text import Text

from treeagent.contrib.guards.patterns import Patterns, format_named
from treeagent.contrib.guards.shield import FORBIDDEN
from treeagent.envs.base import Env, EnvWrapper, StepResult
from treeagent.pipeline.terminal import Terminal
from treeagent.store import regular, write_atomic
from treeagent.types import Task, ToolCall, storable
from treeagent.visible import visible

app = typer.Typer()
_POLL = 0.1
"""Seconds between two checks for an answer."""
_ASK, _ANSWER = ".ask.json", ".answer.json"


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Approval:
    """Calls that wait until a person approves them with ``treeagent approve FOLDER``."""

    calls: tuple[str, ...]
    """Regular expressions of calls, as ``Patterns`` reads them: one that matches waits until a person approves it."""
    folder: str
    """Folder for requests and answers. It keeps its answers, so use a new folder to be asked again."""
    seconds: Annotated[float, Field(gt=0)] = 300.0
    """Seconds to wait for an answer. A call without an answer by then is refused."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request for approval, as a person sees it."""

    task_id: str
    prompt: str
    place: str
    """The environment's state key; if it has none, a hash of the calls before this one."""
    observation: str
    """The agent's last observation."""
    call: str

    @property
    def id(self) -> str:
        return blake2b(orjson.dumps([self.task_id, self.place, self.call]), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    yes: bool
    who: str
    """Name of the person who answered; empty if nobody answered in time."""
    note: str = ""


_ANSWERS, _REQUESTS = TypeAdapter(Answer), TypeAdapter(Request)


def ask(folder: Path, request: Request, seconds: float) -> str | None:
    """Request approval and wait for the answer; without one after ``seconds`` the request is refused. Returns why the
    call must not be made, or None if it is approved."""
    folder.mkdir(parents=True, exist_ok=True)
    request = Request(*(storable(text) for text in asdict(request).values()))
    path = folder / f"{request.id}{_ASK}"
    if _answer(folder, request.id) is None and not path.exists():
        write_atomic(path, orjson.dumps(asdict(request)))
    ends = time.monotonic() + seconds
    while (found := _answer(folder, request.id)) is None:
        if time.monotonic() >= ends:
            answer(folder, request.id, Answer(False, "", note=f"nobody answered in {seconds:g} s"))
        else:
            time.sleep(_POLL)
    if found.yes:
        return None
    refusal = f"{found.who} said no" if found.who else "it was not approved"
    return f"{refusal}: {found.note}" if found.note else refusal


def waiting(folder: Path) -> Iterator[Request]:
    """Yield the requests without an answer, oldest first."""
    for path in sorted(folder.glob(f"*{_ASK}"), key=lambda path: (path.stat().st_mtime_ns, path.name)):
        request = _REQUESTS.validate_json(regular(path).read_bytes())
        if _answer(folder, request.id) is None:
            yield request


def answer(folder: Path, request_id: str, reply: Answer) -> bool:
    """Answer a request. Returns False if it already has an answer, which then stays."""
    path = folder / f"{request_id}{_ANSWER}"
    temporary = folder / f".{request_id}.{threading.get_native_id()}.tmp"
    write_atomic(temporary, orjson.dumps(asdict(reply)))
    try:
        os.link(temporary, path)  # unlike a rename, this fails if there is an answer already
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def _answer(folder: Path, request_id: str) -> Answer | None:
    path = folder / f"{request_id}{_ANSWER}"
    return _ANSWERS.validate_json(regular(path).read_bytes()) if path.exists() else None


class ApprovedEnv(EnvWrapper):
    """Asks a person before it makes a call that matches. A refused call is answered like one that a shield forbids."""

    options_type = Approval

    def __init__(self, env: Env, options: Approval) -> None:
        super().__init__(env)
        self._options, self._patterns = options, Patterns(options.calls, env.tools())
        self._task = Task("", "")
        self._calls: tuple[str, ...] = ()
        self._observation = ""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self._observation, info = self.env.reset(seed=seed, options=options)
        task = (options or {}).get("task")
        self._task = task if isinstance(task, Task) else Task("", "")
        self._calls = ()
        return self._observation, info

    def step(self, action: str | ToolCall) -> StepResult:
        reason = self._refused(action)
        if reason is not None:
            self._observation = FORBIDDEN + reason
            return self._observation, 0.0, False, False, {"tool_error": self._observation}
        result = self.env.step(action)
        self._observation = result[0]
        self._calls = (*self._calls, format_named(action))
        return result

    def snapshot(self) -> object:
        return self.env.snapshot(), self._task, self._calls, self._observation

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        assert isinstance(snapshot, tuple)
        inner, self._task, self._calls, self._observation = snapshot
        self.env.restore(inner, reseed=reseed)

    def _refused(self, action: str | ToolCall) -> str | None:
        """Wait for a person's answer if the call needs one. Returns why it must not be made, or None if it may."""
        if self._patterns.matched(action) is None:
            return None
        place = self.env.state_key()
        if place is None:
            place = blake2b(orjson.dumps(list(map(storable, self._calls))), digest_size=16).hexdigest()
        # As JSON, because without the arguments' names two different calls can look the same.
        call = format_named(self._patterns.call(action))
        request = Request(self._task.id, self._task.prompt, place, self._observation, call)
        return ask(Path(self._options.folder), request, self._options.seconds)


@app.command()
def approve(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the wrapper approval.")],
    who: Annotated[str, typer.Option("--who", help="Your name, which your answers bear.")] = "a person",
) -> None:
    """Approve or refuse calls that wait for approval in a run in another terminal.

    Asks for y or n, followed by an optional reason, for each call. Ends by Ctrl-C.

    Example: treeagent approve runs/shop-approvals
    """
    console = Terminal(soft_wrap=True)
    folder.mkdir(parents=True, exist_ok=True)
    console.print(f"calls that wait in {folder} appear here; Ctrl-C ends it", style="dim")
    while True:
        time.sleep(_POLL)
        for request in waiting(folder):
            for style, text in (("dim", request.task_id), ("italic", request.prompt), ("", request.observation)):
                console.print(Text(visible(text, lines=True), style=style))
            console.print(Text(visible(request.call, lines=True), style="bold"))
            word, _, note = typer.prompt("approve? y, or n and a reason").strip().partition(" ")
            if word.lower() not in ("y", "yes", "n", "no"):
                continue
            if not answer(folder, request.id, Answer(word.lower() in ("y", "yes"), who, note=note)):
                console.print("too late: it was answered before", style="yellow")

"""The tools of any server of the Model Context Protocol, with questions to be answered by them, as an environment."""

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treeagent.envs.adapters import required
from treeagent.envs.base import Env, SnapshotKind, StepResult, ToolSpec, task_to_play
from treeagent.envs.calls import read_call, text_tool
from treeagent.envs.worker import EnvCrashed, EnvTimeout
from treeagent.types import Split, Task, ToolCall, UserError

ANSWER = text_tool("answer", "Answer the question. Ends the visit.", "answer")


def exact_answer(task: Task, answer: str) -> float:
    """1 where the answer is ``task.data["answer"]``, whatever its case and spaces, else 0."""
    return float(_plain(answer) == _plain(str(task.data["answer"])))


class McpEnv(Env):
    """Questions to be answered with the tools of an MCP server over stdio; the tool ``answer`` is ours.

    An episode is replayed where every tool says by its annotations that it is read-only or idempotent, so that calling
    it again changes nothing more; else ``snapshot_kind`` is ``none`` and search needs a world model. After a call
    that may have changed something, a reset starts another server.

    Args:
        command: starts the server.
        tasks: questions by split, their answer in ``data``.
        tools: names of the server's tools to offer; none offers all.
        verify: (task, answer) → reward, 1 for a success.
        seconds: limit of starting the server and of each call.
        characters: of a result that the agent reads.

    Raises:
        UserError: the extra is not installed, the server does not start, or lacks a tool named in ``tools``.
        EnvCrashed: from ``step``, the server has ended.
        EnvTimeout: from ``step``, a call took longer than ``seconds``.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        tasks: Mapping[Split, Sequence[Task]],
        tools: Sequence[str] | None = None,
        verify: Callable[[Task, str], float] = exact_answer,
        seconds: float = 30.0,
        characters: int = 4000,
    ) -> None:
        required("mcp")
        if not command:
            raise UserError("command is empty: give the program that starts the server, and its arguments")
        self._command, self._tasks, self._seconds, self._characters = list(command), tasks, seconds, characters
        self._judge = verify
        self._server: _Server | None = None
        self._changed = False
        """A tool was called that may have changed something that the server keeps."""
        offered = self._started().tools
        missing = set(tools or ()) - {each.spec.name for each in offered}
        if missing or any(each.spec.name == ANSWER.name for each in offered):
            self.close()
            raise UserError(
                f"the server has no tool {sorted(missing)}: it has {sorted(each.spec.name for each in offered)}"
                if missing
                else "the server has a tool 'answer' of its own: leave it out of tools"
            )
        chosen = [each for each in offered if tools is None or each.spec.name in tools]
        self._tools = (*(each.spec for each in chosen), ANSWER)
        self.snapshot_kind: SnapshotKind = "replay" if all(each.repeatable for each in chosen) else "none"
        self._task: Task | None = None
        self._answer: str | None = None

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        """Start ``options["task"]``, or training task number ``seed``."""
        task = task_to_play(self, seed, options)
        if self._changed:
            self.close()
        self._task, self._answer = task, None
        self._started()
        return "ready", {}

    def step(self, action: str | ToolCall) -> StepResult:
        task = self._current_task()
        call = read_call(action, self._tools) if self._answer is None else "the question is answered already"
        if isinstance(call, str):
            return call, 0.0, self._answer is not None, False, {"tool_error": call}
        if call.name == ANSWER.name:
            self._answer = str(call.arguments["answer"])
            return "answered", self._judge(task, self._answer), True, False, {}
        server = self._running()
        self._changed |= not next(tool for tool in self._tools if tool.name == call.name).read_only
        text, failed = server.call(call, self._seconds)
        if len(text) > self._characters:
            text = f"{text[: self._characters]} and {len(text) - self._characters} more characters"
        return text, 0.0, False, False, {"tool_error": text} if failed else {}

    def tools(self) -> Sequence[ToolSpec]:
        return self._tools

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        held = self._tasks.get(split, ())
        if start + count > len(held):
            raise UserError(f"{split} tasks {start} to {start + count} are asked for, but there are {len(held)}")
        return held[start : start + count]

    def verify(self) -> float:
        """What ``verify`` says of the answer; 0 before there is one."""
        return 0.0 if self._answer is None else self._judge(self._current_task(), self._answer)

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def _current_task(self) -> Task:
        if self._task is None:
            raise ValueError("no episode has begun: call reset first")
        return self._task

    def _started(self) -> "_Server":
        if self._server is None or not self._server.alive:
            self._server = _Server(self._command, self._seconds)
            self._changed = False
        return self._server

    def _running(self) -> "_Server":
        if self._server is None or not self._server.alive:
            raise EnvCrashed(f"the MCP server {self._command} has ended, and with it the episode")
        return self._server


def from_mcp(
    command: Sequence[str],
    *,
    tasks: Mapping[Split, Sequence[Task]],
    tools: Sequence[str] | None = None,
    verify: Callable[[Task, str], float] = exact_answer,
    seconds: float = 30.0,
) -> McpEnv:
    """The tools of the MCP server that ``command`` starts, as an environment; the arguments are ``McpEnv``'s."""
    return McpEnv(command, tasks=tasks, tools=tools, verify=verify, seconds=seconds)


@dataclass(frozen=True, slots=True)
class _Tool:
    spec: ToolSpec
    repeatable: bool
    """By its annotations, calling it again with the same arguments changes nothing more."""


_Asked = tuple[ToolCall, "concurrent.futures.Future[tuple[str, bool]]"]


class _Server:
    """A server and a session with it, in an event loop of a thread of its own."""

    def __init__(self, command: Sequence[str], seconds: float) -> None:
        self.tools: list[_Tool] = []
        self._command = list(command)
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop = asyncio.new_event_loop()
        self._asked: asyncio.Queue[_Asked] = asyncio.Queue()
        self._ending = False
        """The session is over and the server is being ended, which a cancellation would leave half done."""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        try:
            self._ready.result(seconds)
        except Exception as error:  # whatever a stranger's server or its start raises
            self.close()
            reason = str(error) or f"no answer in {seconds:g} seconds"
            raise UserError(f"the MCP server {self._command} does not start ({reason}): check its command") from None

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def call(self, call: ToolCall, seconds: float) -> tuple[str, bool]:
        """The result in text, and whether it is an error."""
        result: concurrent.futures.Future[tuple[str, bool]] = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(self._asked.put_nowait, (call, result))
        try:
            return result.result(seconds)
        except concurrent.futures.TimeoutError:
            self.close()
            raise EnvTimeout(f"{call} of the MCP server {self._command} took longer than {seconds:g} seconds") from None
        except ConnectionError as error:
            self.close()
            raise EnvCrashed(f"the MCP server {self._command} ended in {call}") from error

    def close(self) -> None:
        """End the session, which ends the server."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._stop)
        self._thread.join()

    def _stop(self) -> None:
        if self._ending:
            return
        for task in asyncio.all_tasks(self._loop):
            if task.get_name() == "session":
                task.cancel()

    def _serve(self) -> None:
        async def session() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.set_name("session")
            await self._session()

        try:
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(session())
        except BaseException as error:  # the boundary of the thread: told to who waits for it
            if not self._ready.done():
                self._ready.set_exception(_first(error))
        finally:
            self._loop.close()

    async def _session(self) -> None:
        from mcp import ClientSession, StdioServerParameters
        from mcp.client.stdio import stdio_client

        parameters = StdioServerParameters(command=self._command[0], args=self._command[1:])
        with open(os.devnull, "w") as nowhere:
            async with stdio_client(parameters, errlog=nowhere) as streams, ClientSession(*streams) as session:
                try:
                    await self._answer(session)
                finally:
                    self._ending = True

    async def _answer(self, session: Any) -> None:
        await session.initialize()
        self.tools = [_tool(each) for each in (await session.list_tools()).tools]
        self._ready.set_result(None)
        while True:
            call, result = await self._asked.get()
            try:
                result.set_result(await _called(session, call))
            except BaseException as error:  # who waits for the result is in another thread
                result.set_exception(ConnectionError(str(error)))
                raise


async def _called(session: Any, call: ToolCall) -> tuple[str, bool]:
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED

    try:
        answer = await session.call_tool(call.name, dict(call.arguments))
    except MCPError as error:
        if error.code == CONNECTION_CLOSED:
            raise ConnectionError(error.message) from error
        return error.message, True
    content = getattr(answer, "content", None)
    if content is None:
        return "the tool asks for more input, which the agent cannot give", True
    return "\n".join(getattr(each, "text", f"[{each.type}]") for each in content), bool(answer.is_error)


def _tool(offered: Any) -> _Tool:
    hints = offered.annotations
    read_only = bool(hints is not None and hints.read_only_hint)
    repeatable = read_only or bool(hints is not None and hints.idempotent_hint)
    return _Tool(ToolSpec(offered.name, offered.description or "", offered.input_schema, read_only), repeatable)


def _first(error: BaseException) -> BaseException:
    """The first error of a group of them, in which a session wraps its own."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _plain(text: str) -> str:
    return " ".join(text.lower().split())

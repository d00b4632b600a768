"""An environment of the tools of a Model Context Protocol (MCP) server and of questions to answer with them."""

import contextlib
import json
import logging
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TextIO

from pydantic import ValidationError

from treeagent.contrib.worlds import required, some
from treeagent.envs.base import SnapshotKind, ToolSpec, task_to_play
from treeagent.envs.calls import text_tool
from treeagent.envs.visit import CallRefused, ToolEnv
from treeagent.envs.worker import EnvCrashed, EnvTimeout
from treeagent.types import Split, Task, ToolCall, UserError
from treeagent.visible import visible

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""Tool names that every policy format can write. The protocol recommends the same names."""
ANSWER = text_tool("answer", "Answer the question. Ends the visit.", "answer", answers=True)


def exact_answer(task: Task, answer: str) -> float:
    """Return 1 if the answer equals ``task.data["answer"]`` up to case and white space, otherwise 0."""
    given, right = (" ".join(text.lower().split()) for text in (answer, str(task.data["answer"])))
    return float(given == right)


class McpEnv(ToolEnv[None, str | None]):
    """Questions to answer with the tools of an MCP server over stdio. The environment adds the tool ``answer``.

    Episodes can be replayed if every offered tool is annotated as read-only or idempotent; otherwise search needs a
    world model. After a call that may have changed something, the next reset starts a new server.

    Args:
        command: command that starts the server.
        tasks: questions by split, with their answers in ``data``.
        tools: names of the server's tools to offer; None offers all.
        verify: (task, answer) → reward, 1 for a success.
        seconds: time limit for starting the server and for each call.
        characters: most characters of a result that the agent reads.
        env: environment variables of the server, besides the few that every server gets, such as a key.
        cwd: folder in which the server runs; by default this process's.
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
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        required("mcp")
        self._start = partial(_Server, list(command), seconds, env, cwd)
        self._command, self._tasks, self._seconds, self._characters = list(command), tasks, seconds, characters
        self._judge = verify
        self._server: _Server | None = None
        self._changed = False
        """Whether a call may have changed the server's state."""
        offered = self._running_server().tools
        names = [each.name for each in offered]
        requested = names if tools is None else tools
        chosen = [each for each in offered if each.name in requested]
        self._tools = (*map(_spec, chosen), ANSWER)
        if unknown := [each for each in requested if each not in names or each == ANSWER.name]:
            fault = f"tools has {unknown!r:.500}: name tools of the server, which has {names!r:.500}, but not 'answer'"
        elif fault := _unfit_reason(self._tools):
            fault = f"the MCP server {self._command} {fault}: name others of its tools in tools="
        if fault:
            self.close()
            raise UserError(fault)
        self.snapshot_kind: SnapshotKind = "replay" if all(map(_repeatable, chosen)) else "none"

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        task = task_to_play(self, seed, options)
        if self._changed:
            self.close()
        self._at = task, None
        self._running_server()
        return "ready", {}

    def act(self, call: ToolCall) -> str:
        if call.name == ANSWER.name:
            self.visit = str(call.arguments["answer"])
            return "answered"
        self._changed |= not next(tool for tool in self._tools if tool.name == call.name).read_only
        answer = self._answer(call)
        text = "\n".join(map(_shown, answer.content))
        if not text and answer.structured_content is not None:
            text = json.dumps(answer.structured_content, ensure_ascii=False)
        if len(text) > self._characters:
            text = f"{text[: self._characters]} and {len(text) - self._characters} more characters"
        if answer.is_error:
            raise CallRefused(text or "the call failed without a reason")
        return text or "the result is empty"

    def tools(self) -> Sequence[ToolSpec]:
        return self._tools

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return some(self._tasks.get(split, ()), split, count, start, "tasks")

    def verdict(self) -> float | None:
        return None if self.visit is None else self._judge(self.task, self.visit)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _running_server(self) -> "_Server":
        if self._server is None:
            self._server, self._changed = self._start(), False
        return self._server

    def _answer(self, call: ToolCall) -> Any:
        """The server's result of a call. A server that ends or hangs is closed, and with it the episode."""
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        if self._server is None:
            raise EnvCrashed(f"the MCP server {self._command} has ended, and with it the episode")
        try:
            return self._server.call(call, self._seconds)
        except Exception as error:  # depending on the server's behaviour, the package may raise anything
            code = error.code if isinstance(error, MCPError) else CONNECTION_CLOSED
            if code not in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                raise CallRefused(str(error) or "the server refused the call without a reason") from error
            self.close()
            if code == REQUEST_TIMEOUT:
                what = f"{call!r:.200} of the MCP server {self._command}"
                raise EnvTimeout(f"{what} took longer than {self._seconds:g} seconds") from None
            raise EnvCrashed(f"the MCP server {self._command} ended in {call!r:.200}: {_sentence(error)}") from None


class _Server:
    """A running server and the session with it, in an event loop that has its own thread."""

    def __init__(self, command: Sequence[str], seconds: float, env: Mapping[str, str] | None, cwd: str | None) -> None:
        from anyio.from_thread import start_blocking_portal
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client

        # For each line that is no message, the package logs a traceback to the terminal.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)
        parameters = StdioServerParameters(
            command=command[0],
            args=list(command[1:]),
            env=None if env is None else dict(env),
            cwd=cwd,
            encoding_error_handler="replace",
        )
        self._errors = errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - open as long as the server
        try:
            with contextlib.ExitStack() as stack:
                self._portal = stack.enter_context(start_blocking_portal())
                client = Client(stdio_client(parameters, errors), mode="legacy", read_timeout_seconds=seconds)
                self._client = stack.enter_context(self._portal.wrap_async_context_manager(client))
                self.tools = self._listed_tools()
                self._running = stack.pop_all()
        except Exception as error:  # starting an unknown server may raise anything
            why = "; it last wrote: ".join(filter(None, (_sentence(error), _last_line(errors))))
            errors.close()
            raise UserError(
                f"the MCP server {command} does not start ({_plain_line(why)}): check its command"
            ) from None

    def _listed_tools(self) -> Sequence[Any]:
        """Return the server's tools. A server may list them on several pages."""
        page = self._portal.call(self._client.list_tools)
        found = list(page.tools)
        while page.next_cursor is not None:
            page = self._portal.call(partial(self._client.list_tools, cursor=page.next_cursor))
            found += page.tools
        return found

    def call(self, call: ToolCall, seconds: float) -> Any:
        """Call a tool and return the server's result. It is not validated against the tool's output schema, because the
        server chooses the regular expressions in it."""
        from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult

        request = CallToolRequest(params=CallToolRequestParams(name=call.name, arguments=dict(call.arguments)))
        return self._portal.call(self._client.session.send_request, request, CallToolResult, seconds)

    def close(self) -> None:
        with contextlib.suppress(Exception):  # a server that has failed may raise again
            self._running.close()
        self._errors.close()


def _last_line(errors: TextIO) -> str:
    errors.seek(0)
    return next((line for line in reversed(errors.read().splitlines()) if line.strip()), "")


def _shown(part: Any) -> str:
    """Return a part of a result as text: its own, that of an embedded resource, or what it is."""
    if part.type == "text":
        return str(part.text)
    return str(getattr(getattr(part, "resource", None), "text", f"[{part.type} {getattr(part, 'uri', '')}]"))


def _spec(offered: Any) -> ToolSpec:
    read_only = bool(offered.annotations is not None and offered.annotations.read_only_hint)
    return ToolSpec(offered.name, offered.description or "", offered.input_schema, read_only)


def _repeatable(offered: Any) -> bool:
    """Whether the tool's annotations say that a repeated call with the same arguments changes nothing more."""
    hints = offered.annotations
    return hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)


def _unfit_reason(tools: Sequence[ToolSpec]) -> str:
    """Return why an agent could not call the tools; empty if it can."""
    names = [tool.name for tool in tools]
    for name in names:
        if not _NAME.fullmatch(name) or [each.lower() for each in names].count(name.lower()) > 1:
            return f"has a tool {name!r:.200}: a name is 1 to 128 of A-Z a-z 0-9 _ . -, and there once, in any case"
    return ""


def _sentence(error: BaseException) -> str:
    """Return an error in one line. A session wraps its errors in groups; of a group, the first error is taken."""
    if isinstance(error, BaseExceptionGroup):
        return _sentence(error.exceptions[0])
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return _plain_line(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
    return _plain_line(str(error) or type(error).__name__)


def _plain_line(text: str) -> str:
    """Return the beginning of an untrusted text as one line of visible characters."""
    return visible(" ".join(text[:2000].split()))[:500]

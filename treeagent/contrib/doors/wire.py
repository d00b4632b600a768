"""OpenAI's chat completions over HTTP, for programs on this machine: requests, answers, streams, refusals.

The server listens on 127.0.0.1 and answers only requests whose ``Host`` is this machine and that no web page sent.
"""

import hmac
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from treeagent.contrib.traces.transcripts import TranscriptMessage, messages_of
from treeagent.envs.base import ToolSpec
from treeagent.types import ToolCall, UserError

Json = dict[str, Any]
Endpoint = Callable[[Request], Awaitable[Response]]
MOST_BYTES = 16 << 20  # of a request's body
_HEARD = 512  # conversations that are remembered
_RESPONSES = (
    "/v1/responses is not served here, only /v1/chat/completions: use your SDK's chat class, such as "
    "OpenAIChatCompletionsModel (openai-agents), OpenAIChatModel (pydantic-ai) or ChatOpenAI (langchain)"
)


@dataclass(frozen=True)
class Asked:
    """A request for a chat completion."""

    messages: tuple[TranscriptMessage, ...]
    turn: int | None  # the index of the assistant's last message; None if there is none
    threads: tuple[str, str]  # ``continued`` by the messages before that one, and by all
    tools: tuple[ToolSpec, ...] = ()
    choice: str = "auto"  # ``tool_choice``: "auto", "none", "required", or the name of a tool
    stop: tuple[str, ...] = ()
    limit: int | None = None
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def opening(self) -> tuple[TranscriptMessage, ...]:
        """The messages before the assistant's first."""
        return tuple(takewhile(lambda each: each.role != "assistant", self.messages))

    @cached_property
    def key(self) -> str:
        """Equal for equal requests: messages, tools and what constrains the answer."""
        return digest([self.threads[1], tools_key(self.tools), self.choice, self.stop, self.limit])


@dataclass(frozen=True, slots=True)
class Said:
    """An answer as OpenAI's clients read it."""

    id: str
    content: str
    thought: str
    calls: tuple[tuple[str, ToolCall], ...]  # with their ids
    finish: str
    prompt_tokens: int
    completion_tokens: int

    def tool_calls(self) -> list[Json]:
        given = [(id, {"name": c.name, "arguments": orjson.dumps(c.arguments).decode()}) for id, c in self.calls]
        return [{"id": id, "type": "function", "function": function} for id, function in given]

    def head(self, model: str, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": int(time.time()), "model": model}

    def usage(self) -> Json:
        given, said = self.prompt_tokens, self.completion_tokens
        return {"usage": {"prompt_tokens": given, "completion_tokens": said, "total_tokens": given + said}}


def model_name(checkpoint: Path) -> str:
    """The name under which a checkpoint is served: of its folder, or on the hub."""
    return checkpoint.name if checkpoint.is_dir() else str(checkpoint)


def canonical(message: TranscriptMessage) -> list[object]:
    """A message without what clients change on its way: blanks at its ends, the writing of arguments, thoughts."""
    calls = [[name, call.name, call.arguments] for name, call in message.calls]
    return [message.role, message.content.strip(), calls, message.answers]


def continued(thread: str, message: TranscriptMessage) -> str:
    """The name of a conversation, from its name before its last message."""
    return digest([thread, canonical(message)])


def digest(value: object) -> str:
    return blake2b(orjson.dumps(value, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()


def tools_key(tools: Sequence[ToolSpec]) -> str:
    """Equal for equal tools."""
    return digest([[each.name, each.description, each.parameters] for each in tools])


class Reader:
    """Reads requests. The messages of an earlier request of the conversation are not read again."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._heard = OrderedDict[bytes, tuple[tuple[TranscriptMessage, ...], str]]()
        """The messages of the latest requests by their JSON, with their names."""

    def read(self, body: bytes) -> Asked:
        """The request in a body. The server's settings stand for temperature and the like."""
        try:
            row = orjson.loads(body)
            if (named := row.get("model", self.model)) != self.model:
                raise HTTPException(404, f"the model {named!r:.60} is not served here: name {self.model!r}")
            if row.get("n") not in (None, 1):
                raise UserError(f"n is {row['n']!r:.20}, but one answer is given: ask again in other episodes")
            messages, turn, threads = self._read(row["messages"])
            choice, stop = row.get("tool_choice") or "auto", row.get("stop") or ()
            limit = row.get("max_completion_tokens") or row.get("max_tokens")
            tools = () if choice == "none" else tuple(_tool(each["function"]) for each in row.get("tools") or ())
            choice = choice if isinstance(choice, str) else str(choice["function"]["name"])
            stop = (stop,) if isinstance(stop, str) else tuple(map(str, stop))
            limit = None if limit is None else max(int(limit), 1)
            asked = Asked(messages, turn, threads, tools, choice, stop, limit, row)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"this is no chat completion's request ({type(error).__name__} {error!s:.80})"
            raise error if isinstance(error, UserError) else UserError(reason) from error
        if not messages or messages[-1].role == "assistant":
            raise UserError("the last message must be the user's or a tool's")
        return asked

    def _read(self, rows: list[Json]) -> tuple[tuple[TranscriptMessage, ...], int | None, tuple[str, str]]:
        start = next((index for index in reversed(range(len(rows))) if rows[index].get("role") == "assistant"), 0)
        messages, thread = self._heard.pop(orjson.dumps(rows[:start]), ((), ""))
        new, turn, before = [*messages], None, ""
        for message in (each for row in rows[start if messages else 0 :] for each in messages_of(row)):
            if message.role == "assistant":
                turn, before = len(new), thread
            thread = continued(thread, message)
            new.append(message)
        self._heard[orjson.dumps(rows)] = heard = tuple(new), thread
        if len(self._heard) > _HEARD:
            self._heard.popitem(last=False)
        return heard[0], turn, (before, thread)


def _tool(row: Json) -> ToolSpec:
    schema = row.get("parameters") or {"type": "object", "properties": {}}
    return ToolSpec(str(row["name"]), str(row.get("description") or ""), schema)


def completion(said: Said, model: str, extra: Json) -> Json:
    """The answer as one JSON object."""
    message: Json = {"role": "assistant", "content": said.content or None}
    if said.thought:
        message["reasoning_content"] = said.thought
    if said.calls:
        message["tool_calls"] = said.tool_calls()
    choice = {"index": 0, "message": message, "finish_reason": said.finish, "logprobs": None}
    return said.head(model, "chat.completion") | {"choices": [choice]} | said.usage() | extra


def chunks(said: Said, asked: Asked, model: str, extra: Json) -> Iterator[bytes]:
    """The answer as server-sent events."""
    head = said.head(model, "chat.completion.chunk")
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": said.thought}] if said.thought else []
    deltas += [{"content": said.content[start : start + 64]} for start in range(0, len(said.content), 64)]
    deltas += [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(said.tool_calls())]
    for delta in deltas:
        yield event(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield event(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": said.finish}]} | extra)
    if (asked.body.get("stream_options") or {}).get("include_usage"):
        yield event(head | {"choices": []} | said.usage())
    yield b"data: [DONE]\n\n"


def event(value: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


async def body_of(request: Request) -> bytes:
    """The body. A larger one than ``MOST_BYTES`` is read to its end, so that its sender hears the refusal."""
    body, size = bytearray(), 0
    async for part in request.stream():
        size += len(part)
        body += part if size <= MOST_BYTES else b""
    if size > MOST_BYTES:
        raise HTTPException(413, f"the body has {size:,} bytes, and may have {MOST_BYTES:,}: send less")
    return bytes(body)


def application(model: str, key: str, endpoints: Mapping[str, Endpoint]) -> Starlette:
    """The server's application: ``/v1/models``, and ``endpoints`` by their paths, each also under ``/e/EPISODE``."""

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": model, "object": "model", "owned_by": "treeagent"}]})

    async def responses(request: Request) -> Response:
        raise HTTPException(404, _RESPONSES)

    async def refused(request: Request, error: Exception) -> Response:
        status, message = (error.status_code, error.detail) if isinstance(error, HTTPException) else (400, str(error))
        if message in ("Not Found", "Method Not Allowed"):
            path = f"{request.method} {request.url.path}"
            message = f"{path} is not served here: POST to /v1/chat/completions, or GET /v1/models"
        row = {"message": message, "type": "invalid_request_error", "param": None, "code": status}
        return JSONResponse({"error": row}, status)

    def guarded(endpoint: Endpoint) -> Endpoint:
        async def answer(request: Request) -> Response:
            if request.url.hostname not in ("127.0.0.1", "localhost") or "origin" in request.headers:
                raise HTTPException(403, "only programs on this machine may ask, and no web pages")
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if key and not hmac.compare_digest(given.encode(), key.encode()):
                raise HTTPException(401, "the key is wrong: give the one of --key as api_key")
            return await endpoint(request)

        return answer

    served = {**endpoints, "/v1/responses": responses, "/v1/models": models}
    routes = [
        Route(start + path, guarded(endpoint), methods=["GET" if endpoint is models else "POST"])
        for path, endpoint in served.items()
        for start in ("", "/e/{episode}")
    ]
    handlers: Mapping[Any, Any] = {HTTPException: refused, UserError: refused, ClientDisconnect: refused}
    return Starlette(routes=routes, exception_handlers=handlers)


@contextmanager
def running(app: Starlette, port: int = 0) -> Iterator[str]:
    """Context in which a thread serves the application on 127.0.0.1; yields its address. Port 0 is any free one."""
    # A connection stays open while its agent is busy: a request on one that was just closed would be lost.
    options: Json = {"log_level": "warning", "timeout_keep_alive": 600, "timeout_graceful_shutdown": 5}
    served = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, access_log=False, **options))
    thread = threading.Thread(target=served.run, daemon=True)
    thread.start()
    while not served.started:
        if not thread.is_alive():
            raise UserError(f"port {port} cannot be used: another program may have it; give another")
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{served.servers[0].sockets[0].getsockname()[1]}"
    finally:
        served.should_exit = True
        thread.join()

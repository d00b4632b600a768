"""Stdio transport to a Model Context Protocol server, with limits on the server's output."""

import codecs
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from encodings import utf_8
from typing import Any

import anyio
from anyio.abc import ObjectReceiveStream
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import JSONRPCNotification, JSONRPCRequest

_LINE = 2**24
"""Most characters of a line that a server may write. A result is one line."""
_REQUESTS = 32
"""Most requests that a server may send to the client during one call. Replies that the server does not read accumulate
in memory here."""
_ERROR_BYTES = 1000
"""Number of bytes kept from the end of a server's standard error."""
_ENCODING = "treeagent-utf-8-in-lines"


class Pipes:
    """The pipes to a server. Starts the server, keeps the end of its standard error, and records a broken limit."""

    def __init__(self) -> None:
        self.fault = ""
        """The limit that the server has exceeded; empty if there is none."""
        self.requests_left = _REQUESTS
        self.reading: anyio.CancelScope | None = None
        """Scope that cancels the wait for the next message; None before the first wait."""
        self._error_output = bytearray()

    def end(self, fault: str) -> None:
        """Stop reading because the server has exceeded a limit, which ``fault`` describes."""
        self.fault = fault
        if self.reading is not None:
            self.reading.cancel()

    def allow_requests(self) -> None:
        """Reset the number of requests that the server may send, at the start of a call."""
        self.requests_left = _REQUESTS

    def last_error_line(self) -> str:
        """Return the last line that the server wrote to its standard error; empty if there is none."""
        lines = self._error_output.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    @contextlib.asynccontextmanager
    async def opened(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> AsyncIterator[tuple[ObjectReceiveStream[Any], Any]]:
        """Start the server. Yields a transport for ``mcp.Client``: a stream of the server's messages, and a stream of
        messages to it."""
        # A server may print any number of lines that are not messages. For each, the package logs a traceback to the
        # terminal, which can take longer than the time limit of a call. Relevant errors are raised in any case.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)
        parameters = StdioServerParameters(
            command=command[0],
            args=list(command[1:]),
            env=None if env is None else dict(env),
            cwd=cwd,
            encoding=_ENCODING,
            encoding_error_handler="replace",
        )
        _OPENED.set(self)
        ours, theirs = os.pipe()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._listen, ours)
                async with contextlib.AsyncExitStack() as stack:
                    with open(theirs, "w") as standard_error:
                        read, write = await stack.enter_async_context(stdio_client(parameters, errlog=standard_error))
                    yield _Messages(self, read), write
                group.cancel_scope.cancel()
        finally:
            os.close(ours)

    async def _listen(self, standard_error: int) -> None:
        """Read the server's standard error and keep only its end. No file grows, and the server never blocks on it."""
        while True:
            await anyio.wait_readable(standard_error)
            chunk = os.read(standard_error, 2**16)
            if not chunk:
                return
            self._error_output[:] = (self._error_output + chunk)[-_ERROR_BYTES:]


_OPENED: ContextVar[Pipes] = ContextVar("opened")
"""The pipes that a decoder belongs to. The package creates the decoder in the context in which the pipes are opened."""


class _Messages(ObjectReceiveStream[Any]):
    """Stream of the messages that the session reads: answers and a limited number of requests, without
    notifications."""

    def __init__(self, pipes: Pipes, stream: Any) -> None:
        self._pipes, self._stream = pipes, stream

    async def receive(self) -> Any:
        pipes, item = self._pipes, None
        while not pipes.fault:
            with anyio.CancelScope() as pipes.reading:
                item = await self._stream.receive()
            message = None if pipes.fault else getattr(item, "message", None)
            if isinstance(message, JSONRPCRequest):
                pipes.requests_left -= 1
                if pipes.requests_left < 0:
                    pipes.end(f"it made more than {_REQUESTS} requests during one call")
                    continue
            if message is not None and not isinstance(message, JSONRPCNotification):
                return item
        raise anyio.ClosedResourceError

    async def aclose(self) -> None:
        await self._stream.aclose()


class _LineTooLong(Exception):
    """A server has written a longer line than is allowed."""


class _Decoder(utf_8.IncrementalDecoder):
    """UTF-8 decoder that limits the length of lines.

    The package reads each line into memory without a limit. It lets the caller choose the encoding, which is therefore
    where the limit is enforced.
    """

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._pipes, self._length = _OPENED.get(), 0

    def decode(self, input: Any, final: bool = False) -> str:
        text = super().decode(input, final)
        end = text.rfind("\n")
        self._length = self._length + len(text) if end < 0 else len(text) - end - 1
        if self._length > _LINE:
            self._pipes.end(f"it wrote a line of more than {_LINE} characters")
            raise _LineTooLong
        return text


_CODEC = codecs.CodecInfo(utf_8.encode, utf_8.decode, incrementaldecoder=_Decoder, name=_ENCODING)
codecs.register(lambda name: _CODEC if name.replace("_", "-") == _ENCODING else None)

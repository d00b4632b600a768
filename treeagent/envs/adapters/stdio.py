"""The stdio transport to a server of the Model Context Protocol, with limits on what the server writes."""

import codecs
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from encodings import utf_8
from typing import Any

import anyio
from anyio.abc import ObjectReceiveStream
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import JSONRPCNotification, JSONRPCRequest

_LINE = 2**24
"""Characters of the longest line that a server may write. A result is one line."""
_REQUESTS = 32
"""Requests that a server may make of us for each call of ours. A server that reads no answers makes them wait here."""
_SAID = 1000
"""Last bytes of a server's standard error that are kept."""
_ENCODING = "treeagent-utf-8-in-lines"


class Pipes:
    """The pipes of a server: how it is started, what it said, and which limit it has broken."""

    def __init__(self) -> None:
        self.fault = ""
        """The limit that the server has broken; empty where it kept all."""
        self.requests_left = _REQUESTS
        self.reading: anyio.CancelScope | None = None
        """Ends the wait for the next message; none before the first."""
        self._said = bytearray()

    def end(self, fault: str) -> None:
        """Read no further: the server has broken a limit."""
        self.fault = fault
        if self.reading is not None:
            self.reading.cancel()

    def allow_requests(self) -> None:
        """Another call begins: the server may make its requests anew."""
        self.requests_left = _REQUESTS

    def last_words(self) -> str:
        """The last line that the server wrote to its standard error; empty where there is none."""
        lines = self._said.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    @contextlib.asynccontextmanager
    async def opened(self, command: Sequence[str]) -> AsyncIterator[tuple[ObjectReceiveStream[Any], Any]]:
        """A transport for ``mcp.Client``: the server's messages, and where those for it go.

        Raises:
            OSError: the server cannot be started.
        """
        # A server may print any number of lines that are no messages. The package logs a traceback of each to the
        # terminal, which costs more time than a call may take. What matters of them becomes our error.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)
        parameters = StdioServerParameters(
            command=command[0], args=list(command[1:]), encoding=_ENCODING, encoding_error_handler="replace"
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
        """Keep the last of what the server says, so that no file grows and the server never waits."""
        while True:
            await anyio.wait_readable(standard_error)
            heard = os.read(standard_error, 2**16)
            if not heard:
                return
            self._said[:] = (self._said + heard)[-_SAID:]


_OPENED: ContextVar[Pipes] = ContextVar("opened")
"""The pipes that a decoder reads for. The package makes it, in the context in which they are opened."""


class _Messages(ObjectReceiveStream[Any]):
    """What the session reads of a server: answers and a few requests. It needs no notifications."""

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
    """A server has written more of a line than is kept in memory."""


class _Decoder(utf_8.IncrementalDecoder):
    """UTF-8 in lines of bounded length.

    The package reads a line into memory until it ends. It has no limit, but it takes an encoding.
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

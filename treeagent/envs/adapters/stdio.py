"""A server of the Model Context Protocol over stdio that nobody trusts: what it writes has limits."""

import codecs
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Sequence
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
        self._said = bytearray()

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
        ours, theirs = os.pipe()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._listen, ours)
                async with contextlib.AsyncExitStack() as stack:
                    with open(theirs, "w") as standard_error:
                        read, write = await stack.enter_async_context(stdio_client(parameters, errlog=standard_error))
                    yield _Messages(self, read), write
                group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            if errors.subgroup(_LineTooLong) is not None:
                self.fault = f"it wrote a line of more than {_LINE} characters"
            raise
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


class _Messages(ObjectReceiveStream[Any]):
    """What the session reads of a server: answers and a few requests. It needs no notifications."""

    def __init__(self, pipes: Pipes, stream: Any) -> None:
        self._pipes, self._stream = pipes, stream

    async def receive(self) -> Any:
        while True:
            item = await self._stream.receive()
            message = getattr(item, "message", None)
            if isinstance(message, JSONRPCRequest):
                self._pipes.requests_left -= 1
                if self._pipes.requests_left < 0:
                    self._pipes.fault = f"it made more than {_REQUESTS} requests during one call"
                    raise anyio.ClosedResourceError
            if message is not None and not isinstance(message, JSONRPCNotification):
                return item

    async def aclose(self) -> None:
        await self._stream.aclose()


class _LineTooLong(Exception):
    """A server has written more of a line than is kept in memory."""


class _Decoder(utf_8.IncrementalDecoder):
    """UTF-8 in lines of bounded length.

    The package reads a line into memory until it ends. It has no limit, but it takes an encoding.
    """

    _length = 0

    def decode(self, input: Any, final: bool = False) -> str:
        text = super().decode(input, final)
        end = text.rfind("\n")
        self._length = self._length + len(text) if end < 0 else len(text) - end - 1
        if self._length > _LINE:
            raise _LineTooLong
        return text


_CODEC = codecs.CodecInfo(utf_8.encode, utf_8.decode, incrementaldecoder=_Decoder, name=_ENCODING)
codecs.register(lambda name: _CODEC if name.replace("_", "-") == _ENCODING else None)

"""The terminal: everything that the program prints goes through ``Terminal``, so that no text can control the
terminal."""

import io
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from treeagent.visible import visible


class Terminal(Console):
    """A console that interprets no markup and shows escape sequences instead of obeying them. It keeps line breaks:
    where one could forge a line, the caller applies ``visible`` first."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text, lines=True), style, control)

    def on_broken_pipe(self) -> None:
        """Raise the error that Rich is handling, which would otherwise exit the process."""
        raise


def _uncoloured(text: str) -> str:
    """The text without the colours that loggers add, and with other control characters made visible."""
    return visible(re.sub(r"\x1b\[[0-9;]*m", "", text), lines=True)


class _Stream:
    """Base class of wrappers of a standard stream that change the text written to it."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = getattr(stream, "rich_proxied_file", stream)
        """The wrapped stream. A Rich console looks for it under this name."""
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        raise NotImplementedError

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


class _Guarded(_Stream):
    """Makes control characters visible in text of other libraries, such as tracebacks, warnings and logs."""

    _BAR = re.compile(r"\r?(?:(?:\n|\x1b\[A)+\Z)?")
    """What tqdm draws its bars with, which is passed on: a first carriage return, or cursor moves alone."""

    def write(self, text: str) -> int:
        bar = self._BAR.match(text)
        assert bar is not None  # the pattern also matches the empty string
        self._stream.write(bar[0] + _uncoloured(text[bar.end() :]))
        return len(text)


def guard_streams() -> None:
    """Make control characters, and those that a stream's encoding lacks, visible in text that reaches the standard
    streams without a ``Terminal``."""
    for name in ("stdout", "stderr"):
        stream: TextIO | None = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        if stream is not None:  # it is None if the process started without it
            setattr(sys, name, _Guarded(stream))


def close_unwritable() -> OSError | None:
    """Redirect each standard stream that cannot be written to the null device, since Python would exit with 120 when it
    flushes it at the end. Returns the reason, if there is one."""
    reason = None
    for stream in filter(None, (sys.__stdout__, sys.__stderr__)):
        try:
            stream.flush()
        except OSError as error:
            reason = error
            null_device = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null_device, stream.fileno())
            os.close(null_device)
    return reason


class _AboveBars(_Stream):
    """Prints each complete line above the progress bars. Rich's own such stream interprets colours and links."""

    def __init__(self, terminal: Terminal, stream: TextIO) -> None:
        super().__init__(stream)
        self._terminal, self._partial = terminal, ""

    def write(self, text: str) -> int:
        partial = "" if text.startswith("\r") else self._partial  # a carriage return redraws a bar of tqdm
        *lines, self._partial = (partial + text.removeprefix("\r")).split("\n")
        for line in lines:
            self._terminal.print(Text(_uncoloured(line)), soft_wrap=True)
        return len(text)

    def flush(self) -> None:
        """Do nothing: an incomplete line waits for its end."""

    def end(self) -> None:
        """Print the incomplete line that is left, if any."""
        if self._partial:
            self.write("\n")


@contextmanager
def lines_above_bars(terminal: Terminal) -> Iterator[None]:
    """While bars are drawn on the terminal, print lines that other code writes to the standard streams above them."""
    streams = sys.stdout, sys.stderr
    above = [_AboveBars(terminal, stream) for stream in streams]
    sys.stdout, sys.stderr = (cast(TextIO, each) for each in above)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        for each in above:
            each.end()

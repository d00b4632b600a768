"""The terminal: all that the program prints goes through this class, so that no text can control the terminal."""

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
    """A console that takes text as text: it reads no markup in it, and shows escape sequences instead of obeying them.

    Writers make foreign words visible themselves where a line break would forge a line or where widths count.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text, lines=True), style, control)

    def on_broken_pipe(self) -> None:
        """Raise the error that Rich is handling. Rich would exit, as foreign code may, which is told as a fault."""
        raise


def _uncoloured(text: str) -> str:
    """The text made visible, without the colours that loggers put in for a terminal."""
    return visible(re.sub(r"\x1b\[[0-9;]*m", "", text), lines=True)


class _Stream:
    """A standard stream that changes what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = getattr(stream, "rich_proxied_file", stream)
        """The stream itself. A console of Rich finds it by this name."""
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        raise NotImplementedError

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


class _Guarded(_Stream):
    """A standard stream in which what others write, such as tracebacks, warnings and logs, is made visible."""

    _BAR = re.compile(r"\r?(?:(?:\n|\x1b\[A)+\Z)?")
    """A carriage return at the beginning, or moves between lines alone: tqdm draws its bars by these."""

    def write(self, text: str) -> int:
        bar = self._BAR.match(text)
        assert bar is not None  # it matches nothing, too
        self._stream.write(bar[0] + _uncoloured(text[bar.end() :]))
        return len(text)


def guard_streams() -> None:
    """Make visible what is written to the standard streams by other ways than a ``Terminal``.

    Characters that the streams' encoding lacks, as ASCII lacks most, are written as escapes, too.
    """
    for name in ("stdout", "stderr"):
        stream: TextIO | None = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        if stream is not None:  # it is None where the process began without it
            setattr(sys, name, _Guarded(stream))


def close_unwritable() -> OSError | None:
    """Redirect a standard stream that cannot be written to nowhere, and return why it cannot; None if both can.

    Otherwise Python would try to write the rest of it when the process ends, and exit with 120.
    """
    reason = None
    for stream in filter(None, (sys.__stdout__, sys.__stderr__)):
        try:
            stream.flush()
        except OSError as error:
            reason = error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
    return reason


class _AboveBars(_Stream):
    """A standard stream whose whole lines are printed above the bars of a terminal.

    Rich has such a stream, but it obeys the colours and links in what it is given.
    """

    def __init__(self, terminal: Terminal, stream: TextIO) -> None:
        super().__init__(stream)
        self._terminal, self._begun = terminal, ""

    def write(self, text: str) -> int:
        begun = "" if text.startswith("\r") else self._begun  # a bar of tqdm is drawn anew
        *lines, self._begun = (begun + text.removeprefix("\r")).split("\n")
        for line in lines:
            self._terminal.print(Text(_uncoloured(line)), soft_wrap=True)
        return len(text)

    def flush(self) -> None:
        """Nothing: the beginning of a line waits for its end."""

    def end(self) -> None:
        """Print what is left, the beginning of a line."""
        if self._begun:
            self.write("\n")


@contextmanager
def lines_above_bars(terminal: Terminal) -> Iterator[None]:
    """While bars are drawn on the terminal, print what others write to the standard streams above them."""
    streams = sys.stdout, sys.stderr
    above = [_AboveBars(terminal, stream) for stream in streams]
    sys.stdout, sys.stderr = (cast(TextIO, each) for each in above)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        for each in above:
            each.end()

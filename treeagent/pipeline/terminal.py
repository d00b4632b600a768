"""The terminal: everything that the program prints goes through ``Terminal``, so that no text can control the
terminal."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from treeagent.visible import Stream, uncoloured, visible


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


class _AboveBars(Stream):
    """Prints each complete line above the progress bars. Rich's own such stream interprets colours and links."""

    def __init__(self, terminal: Terminal, stream: TextIO) -> None:
        super().__init__(stream)
        self._terminal, self._partial = terminal, ""

    def write(self, text: str) -> int:
        partial = "" if text.startswith("\r") else self._partial  # a carriage return redraws a bar of tqdm
        *lines, self._partial = (partial + text.removeprefix("\r")).split("\n")
        for line in lines:
            self._terminal.print(Text(uncoloured(line)), soft_wrap=True)
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

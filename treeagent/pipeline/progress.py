"""The progress of a run: bars on a terminal, plain lines in a log file."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from treeagent.pipeline.terminal import Terminal, lines_above_bars
from treeagent.visible import visible

_PLAIN_SECONDS = 10.0
"""Seconds between two lines if there is no terminal."""


class Advance(Protocol):
    """Callback for ``count`` more finished items; ``fields`` are live figures to show with them, such as
    simulations/s."""

    def __call__(self, count: int = 1, fields: Mapping[str, str] | None = None) -> None: ...


class Progress(Protocol):
    """Shows the progress of named pieces of work, which may be nested."""

    def track(self, name: str, total: int) -> AbstractContextManager[Advance]: ...

    def warn(self, sentence: str) -> None:
        """Show a warning while the work continues."""
        ...


class RichProgress:
    """Bars with count, time left and live figures; plain lines if the console is not a terminal. Several threads may
    use it."""

    def __init__(self, console: Terminal | None = None) -> None:
        """``console`` defaults to standard error, which leaves standard output to results."""
        self._console = console or Terminal(stderr=True)
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[live]}", style="cyan", markup=False),
            console=self._console,
            expand=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._lock, self._running = threading.Lock(), 0
        self._drawing = ExitStack()
        """Keeps the bars on the terminal while any piece of work is running."""

    def warn(self, sentence: str) -> None:
        self._console.print(Text(sentence, style="yellow"), soft_wrap=True)

    @contextmanager
    def track(self, name: str, total: int) -> Iterator[Advance]:
        on_terminal = self._console.is_terminal
        with self._lock:
            if on_terminal and not self._running:
                self._drawing.enter_context(lines_above_bars(self._console))
                self._drawing.enter_context(self._bars)
            self._running += 1
        task = self._bars.add_task(visible(name), total=total, live="")
        started = last_line = time.monotonic()
        done, live = 0, ""

        def print_line() -> None:
            line = f"{name} {done}/{total} {time.monotonic() - started:.0f} s {live}".rstrip()
            self._console.print(line, soft_wrap=True)

        def advance(count: int = 1, fields: Mapping[str, str] | None = None) -> None:
            nonlocal done, live, last_line
            done += count
            live = live if fields is None else visible("  ".join(f"{each} {value}" for each, value in fields.items()))
            self._bars.update(task, advance=count, live=live)
            if not on_terminal and time.monotonic() - last_line >= _PLAIN_SECONDS:
                last_line = time.monotonic()
                print_line()

        try:
            yield advance
        finally:
            if not on_terminal:
                print_line()
            with self._lock:
                self._running -= 1
                if not self._running:
                    self._drawing.close()
            self._bars.remove_task(task)


class QuietProgress(RichProgress):
    """Prints nothing."""

    def __init__(self) -> None:
        super().__init__(Terminal(quiet=True))

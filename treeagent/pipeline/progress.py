"""The progress of a run: rich's bars on a terminal, plain lines by a clock in a log file."""

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
    """Tells ``count`` more finished items, with live figures in ``fields``."""

    def __call__(self, count: int = 1, fields: Mapping[str, str] | None = None) -> None: ...


class Progress(Protocol):
    """Shows the progress of named pieces of work, which may be nested, and warnings."""

    def track(self, name: str, total: int) -> AbstractContextManager[Advance]: ...

    def warn(self, sentence: str) -> None: ...


class RichProgress:
    """Bars with live figures; without a terminal a line every ten seconds. Several threads may use it."""

    def __init__(self, console: Terminal | None = None) -> None:
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
        self._lock, self._running, self._drawing = threading.Lock(), 0, ExitStack()

    def warn(self, sentence: str) -> None:
        self._console.print(Text(sentence, style="yellow"), soft_wrap=True)

    @contextmanager
    def track(self, name: str, total: int) -> Iterator[Advance]:
        with self._lock:
            if self._console.is_terminal and not self._running:
                self._drawing.enter_context(lines_above_bars(self._console))
                self._drawing.enter_context(self._bars)
            self._running += 1
        task = self._bars.add_task(visible(name), total=total, live="")
        started, done, live, ended = time.monotonic(), 0, "", threading.Event()

        def print_line() -> None:
            if not self._console.is_terminal:
                line = f"{name} {done}/{total} {time.monotonic() - started:.0f} s {live}".rstrip()
                self._console.print(line, soft_wrap=True)

        def print_by_the_clock() -> None:
            while not ended.wait(_PLAIN_SECONDS):
                print_line()

        def advance(count: int = 1, fields: Mapping[str, str] | None = None) -> None:
            nonlocal done, live
            done += count
            live = live if fields is None else visible("  ".join(f"{each} {value}" for each, value in fields.items()))
            self._bars.update(task, advance=count, live=live)

        print_line()
        if not self._console.is_terminal:
            threading.Thread(target=print_by_the_clock, daemon=True).start()
        try:
            yield advance
        finally:
            ended.set()
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

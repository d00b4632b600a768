"""How far a stage has come, told to a terminal, to a log file or to nobody."""

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

_PLAIN_SECONDS = 10.0
"""Seconds between two lines where there is no terminal."""


class Advance(Protocol):
    """Call it when ``count`` more are done; ``fields`` are live figures to show beside, such as simulations/s."""

    def __call__(self, count: int = 1, fields: Mapping[str, str] | None = None) -> None: ...


class Progress(Protocol):
    """Shows the progress of named pieces of work, which may be nested."""

    def track(self, name: str, total: int) -> AbstractContextManager[Advance]: ...

    def warn(self, sentence: str) -> None:
        """What a user should know while the work goes on."""
        ...


class QuietProgress:
    """Says nothing."""

    def warn(self, sentence: str) -> None:
        pass

    @contextmanager
    def track(self, name: str, total: int) -> Iterator[Advance]:
        def advance(count: int = 1, fields: Mapping[str, str] | None = None) -> None:
            pass

        yield advance


class RichProgress:
    """Bars with count, time left and live figures; plain lines where the console is no terminal."""

    def __init__(self, console: Console | None = None) -> None:
        """``console`` defaults to standard error, which leaves standard output to results."""
        self._console = console or Console(stderr=True)
        self._bars: Bars | None = None

    def track(self, name: str, total: int) -> AbstractContextManager[Advance]:
        return self._bar(name, total) if self._console.is_terminal else self._lines(name, total)

    def warn(self, sentence: str) -> None:
        self._console.print(Text(sentence, style="yellow"), soft_wrap=True)

    @contextmanager
    def _bar(self, name: str, total: int) -> Iterator[Advance]:
        outermost = self._bars is None
        bars = self._bars or _bars(self._console)
        if outermost:
            self._bars = bars
            bars.start()
        task = bars.add_task(name, total=total, live="")

        def advance(count: int = 1, fields: Mapping[str, str] | None = None) -> None:
            bars.advance(task, count)
            if fields is not None:
                bars.update(task, live=_join(fields))

        try:
            yield advance
        finally:
            if outermost:
                bars.stop()
                self._bars = None
            else:
                bars.remove_task(task)

    @contextmanager
    def _lines(self, name: str, total: int) -> Iterator[Advance]:
        started = told = time.monotonic()
        done, live = 0, ""

        def tell() -> None:
            seconds = time.monotonic() - started
            line = f"{name} {done}/{total} {seconds:.0f} s {live}".rstrip()
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

        def advance(count: int = 1, fields: Mapping[str, str] | None = None) -> None:
            nonlocal done, live, told
            done += count
            live = live if fields is None else _join(fields)
            if time.monotonic() - told >= _PLAIN_SECONDS:
                told = time.monotonic()
                tell()

        try:
            yield advance
        finally:
            tell()


def _bars(console: Console) -> Bars:
    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[live]}", style="cyan", markup=False),
        console=console,
        expand=True,
    )


def _join(fields: Mapping[str, str]) -> str:
    return "  ".join(f"{name} {value}" for name, value in fields.items())

"""How far a run has come, shown on a terminal or written to a log file as plain lines."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

_PLAIN_SECONDS = 10.0
"""Seconds between two lines where there is no terminal."""
_RESUMED_SECONDS = 0.5
"""What a piece of work reports as done this soon after its start was done by an earlier, interrupted run."""
_LEAST_SHARE = 0.03
"""Part of the whole run that must have been seen before its remaining time is estimated."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One of the stages that a run goes through in a fixed order."""

    name: str
    share: float
    """Time that the stage usually takes, in the unit of the other stages of its run."""
    parts: tuple[str, ...] = ()
    """Names of its pieces of work, as ``Progress.track`` gets them; by default the stage's own name."""

    @property
    def works(self) -> tuple[str, ...]:
        return self.parts or (self.name,)


class Course:
    """Where a run stands among its stages, and how long it will still take.

    The estimate takes the time per unit of share from the work seen so far, and applies it to the work that is left.
    Stages that an earlier run finished never start again, so they count as finished and say nothing about the time.
    """

    def __init__(self, stages: Sequence[Stage], clock: Callable[[], float] = time.monotonic) -> None:
        self._stages, self._clock, self._began = stages, clock, clock()
        self._current = -1
        # By piece of work: when it started, the fraction that is done, and the fraction that an earlier run did.
        self._starts, self._done, self._resumed = dict[str, float](), dict[str, float](), dict[str, float]()

    def start(self, work: str) -> str:
        """Note that a piece of work starts. Returns a line such as "stage 3 of 7: search; about 4 min left", or nothing
        where the stage has started before or the work belongs to no stage."""
        place = next((number for number, stage in enumerate(self._stages) if work in stage.works), -1)
        self._starts[work] = self._clock()
        if place <= self._current:
            return ""
        self._current = place
        left = self.left()
        return f"stage {place + 1} of {len(self._stages)}: {self._stages[place].name}" + (left and f"; {left}")

    def advance(self, work: str, fraction: float) -> None:
        """Note which fraction of a piece of work is done."""
        self._done[work] = fraction
        if self._clock() - self._starts[work] < _RESUMED_SECONDS:
            self._resumed[work] = fraction

    def left(self) -> str:
        """The time that the rest of the run will take, in words; empty while too little has been seen to tell."""
        seen = left = 0.0
        for place, stage in enumerate(self._stages):
            for work in stage.works:
                share = stage.share / len(stage.works)
                done = self._done.get(work, 0.0) if place == self._current else float(place < self._current)
                left += share * (1 - done)
                seen += share * (done - self._resumed.get(work, 0.0)) if work in self._starts else 0.0
        if not seen or seen < _LEAST_SHARE * sum(stage.share for stage in self._stages):
            return ""
        minutes = (self._clock() - self._began) * left / seen / 60
        return f"about {minutes:.0f} min left" if minutes >= 1 else "less than a minute left"


class Advance(Protocol):
    """Call it when ``count`` more are done; ``fields`` are live figures to show beside, such as simulations/s."""

    def __call__(self, count: int = 1, fields: Mapping[str, str] | None = None) -> None: ...


class Progress(Protocol):
    """Shows the progress of named pieces of work, which may be nested."""

    def plan(self, stages: Sequence[Stage]) -> None:
        """Announce the stages of the whole run; from then on progress says which one runs and how long is left."""
        ...

    def track(self, name: str, total: int) -> AbstractContextManager[Advance]: ...

    def warn(self, sentence: str) -> None:
        """What a user should know while the work goes on."""
        ...


class RichProgress:
    """Bars with count, time left and live figures; plain lines where the console is no terminal."""

    def __init__(self, console: Console | None = None) -> None:
        """``console`` defaults to standard error, which leaves standard output to results."""
        self._console = console or Console(stderr=True)
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[live]}", style="cyan", markup=False),
            console=self._console,
            expand=True,
        )
        self._course = Course(())

    def plan(self, stages: Sequence[Stage]) -> None:
        self._course = Course(stages)

    def warn(self, sentence: str) -> None:
        self._console.print(Text(sentence, style="yellow"), soft_wrap=True)

    @contextmanager
    def track(self, name: str, total: int) -> Iterator[Advance]:
        if line := self._course.start(name):
            self._console.print(line, style="bold", markup=False, highlight=False, soft_wrap=True)
        on_terminal, outermost = self._console.is_terminal, not self._bars.tasks
        task = self._bars.add_task(name, total=total, live="")
        if on_terminal and outermost:
            self._bars.start()
        started = told = time.monotonic()
        done, live = 0, ""

        def tell() -> None:
            seconds = time.monotonic() - started
            line = f"{name} {done}/{total} {seconds:.0f} s {self._with_time_left(live)}".rstrip()
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

        def advance(count: int = 1, fields: Mapping[str, str] | None = None) -> None:
            nonlocal done, live, told
            done += count
            live = live if fields is None else "  ".join(f"{each} {value}" for each, value in fields.items())
            self._course.advance(name, done / max(total, 1))
            self._bars.update(task, advance=count, live=self._with_time_left(live))
            if not on_terminal and time.monotonic() - told >= _PLAIN_SECONDS:
                told = time.monotonic()
                tell()

        try:
            yield advance
        finally:
            if not on_terminal:
                tell()
            elif outermost:
                self._bars.stop()  # leaves the finished bar on the screen
            self._bars.remove_task(task)

    def _with_time_left(self, live: str) -> str:
        left = self._course.left()
        return "  ".join(each for each in (live, left and f"whole run: {left}") if each)


class QuietProgress(RichProgress):
    """Says nothing."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True))

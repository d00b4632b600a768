"""How far a run has come, shown on a terminal or written to a log file as plain lines."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from treeagent.run.terminal import Terminal, lines_above_bars
from treeagent.visible import visible

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
        self._starts = dict[str, float]()
        self._done = dict[str, float]()
        """For each piece of work the fraction that is done."""
        self._skipped = 0.0
        """Units of share that an earlier run did."""

    def start(self, work: str) -> str:
        """Note that a piece of work starts. Returns a line such as "stage 3 of 7: search; about 4 min left", or nothing
        where the stage has started before or the work belongs to no stage."""
        place = next((number for number, stage in enumerate(self._stages) if work in stage.works), -1)
        self._starts[work] = self._clock()
        if place <= self._current:
            return ""
        before, self._current = self._position(), place
        self._skipped += self._position() - before
        left = self.left()
        return f"stage {place + 1} of {len(self._stages)}: {self._stages[place].name}" + (left and f"; {left}")

    def advance(self, work: str, fraction: float) -> None:
        """Note which fraction of a piece of work is done."""
        before, self._done[work] = self._position(), fraction
        if self._clock() - self._starts[work] < _RESUMED_SECONDS:
            self._skipped += self._position() - before

    def _position(self) -> float:
        """Units of share that are done."""
        if self._current < 0:
            return 0.0
        stage = self._stages[self._current]
        done = sum(self._done.get(work, 0.0) for work in stage.works) / len(stage.works)
        return sum(each.share for each in self._stages[: self._current]) + stage.share * done

    def left(self) -> str:
        """The time that the rest of the run will take, in words; empty while too little has been seen to tell."""
        position, whole = self._position(), sum(stage.share for stage in self._stages)
        seen = position - self._skipped
        if not seen or seen < _LEAST_SHARE * whole:
            return ""
        minutes = (self._clock() - self._began) * (whole - position) / seen / 60
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
        self._course = Course(())

    def plan(self, stages: Sequence[Stage]) -> None:
        self._course = Course(stages)

    def warn(self, sentence: str) -> None:
        self._console.print(Text(sentence, style="yellow"), soft_wrap=True)

    @contextmanager
    def track(self, name: str, total: int) -> Iterator[Advance]:
        if line := self._course.start(name):
            self._console.print(line, style="bold", soft_wrap=True)
        on_terminal, outermost = self._console.is_terminal, not self._bars.tasks
        task = self._bars.add_task(visible(name), total=total, live="")
        started = told = time.monotonic()
        done, live = 0, ""

        def tell() -> None:
            seconds = time.monotonic() - started
            line = f"{name} {done}/{total} {seconds:.0f} s {self._with_time_left(live)}".rstrip()
            self._console.print(line, soft_wrap=True)

        def advance(count: int = 1, fields: Mapping[str, str] | None = None) -> None:
            nonlocal done, live, told
            done += count
            live = live if fields is None else visible("  ".join(f"{each} {value}" for each, value in fields.items()))
            self._course.advance(name, done / max(total, 1))
            self._bars.update(task, advance=count, live=self._with_time_left(live))
            if not on_terminal and time.monotonic() - told >= _PLAIN_SECONDS:
                told = time.monotonic()
                tell()

        try:
            with self._drawn() if on_terminal and outermost else nullcontext():
                yield advance
        finally:
            if not on_terminal:
                tell()
            self._bars.remove_task(task)

    @contextmanager
    def _drawn(self) -> Iterator[None]:
        """The bars; at the end they stay on the screen."""
        with lines_above_bars(self._console), self._bars:
            yield

    def _with_time_left(self, live: str) -> str:
        left = self._course.left()
        return "  ".join(each for each in (live, left and f"whole run: {left}") if each)


class QuietProgress(RichProgress):
    """Says nothing."""

    def __init__(self) -> None:
        super().__init__(Terminal(quiet=True))

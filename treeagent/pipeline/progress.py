"""The progress of a run, shown as bars on a terminal or written to a log file as plain lines."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from treeagent.pipeline.status import FILE, RunStatus, StageStatus, WorkStatus, write_status
from treeagent.pipeline.terminal import Terminal, lines_above_bars
from treeagent.visible import visible

_PLAIN_SECONDS = 10.0
"""Seconds between two lines if there is no terminal."""
_RESUMED_SECONDS = 0.5
"""Items that a piece of work reports as done this soon after its start were done by an earlier, interrupted run."""
_FILE_SECONDS = 1.0
"""Least seconds between two writes of RUN/progress.json during a piece of work."""
_LEAST_SHARE = 0.03
"""Fraction of the whole run that must be done before its remaining time is estimated."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One of the stages that a run goes through in a fixed order."""

    name: str
    share: float
    """Time that the stage usually takes, in any unit that all stages of the run share."""
    parts: tuple[str, ...] = ()
    """Names of its pieces of work, as they are passed to ``Progress.track``; by default the stage's own name."""

    @property
    def works(self) -> tuple[str, ...]:
        return self.parts or (self.name,)


class RunPosition:
    """The position of a run among its stages, with an estimate of its remaining time.

    The estimate is the time per unit of share of the work done so far, times the share that is left. Stages that an
    earlier run finished never start again, so they count as finished and do not enter the time per unit.
    """

    def __init__(self, stages: Sequence[Stage], clock: Callable[[], float] = time.monotonic) -> None:
        self._stages, self._clock, self._began = stages, clock, clock()
        self._current = -1
        self._stage_starts = dict[int, float]()
        self._starts = dict[str, float]()
        self._done = dict[str, float]()
        """The fraction of each piece of work that is done."""
        self._skipped = 0.0
        """Units of share that an earlier run has done."""

    def start(self, work: str) -> str:
        """Record that a piece of work starts. Returns a line such as "stage 3 of 7: search; about 4 min left", or an
        empty string if the stage has started before or the work belongs to no stage."""
        index = next((number for number, stage in enumerate(self._stages) if work in stage.works), -1)
        self._starts[work] = self._clock()
        if index <= self._current:
            return ""
        before, self._current = self._position(), index
        self._stage_starts[index] = self._clock()
        self._skipped += self._position() - before
        left = self.left()
        return f"stage {index + 1} of {len(self._stages)}: {self._stages[index].name}" + (left and f"; {left}")

    def advance(self, work: str, fraction: float) -> None:
        """Record the fraction of a piece of work that is done."""
        # The same work may run again within its stage, such as another pass over more tasks, so keep the maximum.
        before, self._done[work] = self._position(), max(self._done.get(work, 0.0), fraction)
        if self._clock() - self._starts[work] < _RESUMED_SECONDS:
            self._skipped += self._position() - before

    def _position(self) -> float:
        """Units of share that are done."""
        if self._current < 0:
            return 0.0
        stage = self._stages[self._current]
        return sum(each.share for each in self._stages[: self._current]) + stage.share * self._fraction(stage)

    def _fraction(self, stage: Stage) -> float:
        return sum(self._done.get(work, 0.0) for work in stage.works) / len(stage.works)

    def seconds(self) -> float:
        """Wall time since this object was made."""
        return self._clock() - self._began

    def seconds_left(self) -> float | None:
        """Estimate of the seconds that the rest of the run takes; None while too little of it is done."""
        position, total = self._position(), sum(stage.share for stage in self._stages)
        seen = position - self._skipped
        if not seen or seen < _LEAST_SHARE * total:
            return None
        return self.seconds() * (total - position) / seen

    def left(self) -> str:
        """``seconds_left`` in words; empty while there is no estimate."""
        seconds = self.seconds_left()
        if seconds is None:
            return ""
        return f"about {seconds / 60:.0f} min left" if seconds >= 60 else "less than a minute left"

    def stage_statuses(self, finished: bool = False) -> tuple[StageStatus, ...]:
        """The state of each stage, in order. With ``finished``, all stages are done."""
        now, found, ends = self._clock(), list[StageStatus](), self._clock()
        for index in reversed(range(len(self._stages))):
            stage, started = self._stages[index], self._stage_starts.get(index)
            took = 0.0 if started is None else (now if index == self._current else ends) - started
            ends = ends if started is None else started
            if finished or index < self._current:
                found.append(StageStatus(stage.name, "done", 1.0, took))
            elif index == self._current:
                found.append(StageStatus(stage.name, "running", self._fraction(stage), took))
            else:
                found.append(StageStatus(stage.name, "left", 0.0, 0.0))
        return tuple(reversed(found))


class Advance(Protocol):
    """Callback for ``count`` more finished items; ``fields`` are live figures to show with them, such as
    simulations/s."""

    def __call__(self, count: int = 1, fields: Mapping[str, str] | None = None) -> None: ...


class Progress(Protocol):
    """Shows the progress of named pieces of work, which may be nested."""

    def plan(self, stages: Sequence[Stage]) -> None:
        """Announce the stages of the whole run. From then on, the progress shows which one runs and the time left."""
        ...

    def track(self, name: str, total: int) -> AbstractContextManager[Advance]: ...

    def warn(self, sentence: str) -> None:
        """Show a warning while the work continues."""
        ...


class LockedProgress:
    """A ``Progress`` that several threads may use: a lock passes on one call at a time."""

    def __init__(self, inner: Progress) -> None:
        self._inner, self._lock = inner, threading.Lock()

    def plan(self, stages: Sequence[Stage]) -> None:
        with self._lock:
            self._inner.plan(stages)

    def warn(self, sentence: str) -> None:
        with self._lock:
            self._inner.warn(sentence)

    @contextmanager
    def track(self, name: str, total: int) -> Iterator[Advance]:
        with ExitStack() as tracked:
            with self._lock:
                advance_inner = tracked.enter_context(self._inner.track(name, total))

            def advance(count: int = 1, fields: Mapping[str, str] | None = None) -> None:
                with self._lock:
                    advance_inner(count, fields)

            try:
                yield advance
            finally:
                with self._lock:
                    tracked.close()


class RichProgress:
    """Bars with count, time left and live figures; plain lines if the console is not a terminal."""

    def __init__(self, console: Terminal | None = None, run: Path | None = None) -> None:
        """``console`` defaults to standard error, which leaves standard output to results. ``run`` is the folder of the
        run that this program writes; if given, its progress is also written to RUN/progress.json."""
        self._file = None if run is None else run / FILE
        self._works = dict[int, WorkStatus]()
        """Pieces of work that are running, keyed by the id of their bar."""
        self._starts = dict[int, float]()
        self._warnings = list[str]()
        self._last_write = -_FILE_SECONDS
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
        self._run_position = RunPosition(())
        self._drawing = ExitStack()
        """Keeps the bars on the terminal while any piece of work is running."""

    def plan(self, stages: Sequence[Stage]) -> None:
        self._run_position = RunPosition(stages)
        self._write()

    def finish(self) -> None:
        """Record in RUN/progress.json that the program has done all its work."""
        self._write(finished=True)

    def _write(self, *, finished: bool = False) -> None:
        """Write RUN/progress.json, if there is a run."""
        if self._file is None:
            return
        self._last_write, now, position = time.monotonic(), time.monotonic(), self._run_position
        works = tuple(replace(work, seconds=now - self._starts[task]) for task, work in self._works.items())
        left = 0.0 if finished else position.seconds_left()
        stages, warnings = position.stage_statuses(finished), tuple(self._warnings)
        write_status(
            self._file, RunStatus(time.time(), position.seconds(), left, stages, works, warnings, finished=finished)
        )

    def warn(self, sentence: str) -> None:
        self._warnings.append(sentence)
        self._write()
        self._console.print(Text(sentence, style="yellow"), soft_wrap=True)

    @contextmanager
    def track(self, name: str, total: int) -> Iterator[Advance]:
        if line := self._run_position.start(name):
            self._console.print(line, style="bold", soft_wrap=True)
        on_terminal = self._console.is_terminal
        if on_terminal and not self._works:
            self._drawing.enter_context(self._draw_bars())
        task = self._bars.add_task(visible(name), total=total, live="")
        started = last_line = time.monotonic()
        done, live = 0, ""
        self._works[task], self._starts[task] = WorkStatus(name, 0, total, 0, 0.0, ""), started
        self._write()

        def print_line() -> None:
            seconds = time.monotonic() - started
            line = f"{name} {done}/{total} {seconds:.0f} s {self._with_time_left(live)}".rstrip()
            self._console.print(line, soft_wrap=True)

        def advance(count: int = 1, fields: Mapping[str, str] | None = None) -> None:
            nonlocal done, live, last_line
            done += count
            live = live if fields is None else visible("  ".join(f"{each} {value}" for each, value in fields.items()))
            resumed = done if time.monotonic() - started < _RESUMED_SECONDS else self._works[task].resumed
            self._works[task] = replace(self._works[task], done=done, resumed=resumed, live=live.strip())
            self._run_position.advance(name, done / max(total, 1))
            self._bars.update(task, advance=count, live=self._with_time_left(live))
            if time.monotonic() - self._last_write >= _FILE_SECONDS:
                self._write()
            if not on_terminal and time.monotonic() - last_line >= _PLAIN_SECONDS:
                last_line = time.monotonic()
                print_line()

        try:
            yield advance
        finally:
            if not on_terminal:
                print_line()
            if len(self._works) == 1:
                self._drawing.close()
            self._bars.remove_task(task)
            del self._works[task], self._starts[task]
            self._write()

    @contextmanager
    def _draw_bars(self) -> Iterator[None]:
        """Draw the bars; at the end they stay on the screen."""
        with lines_above_bars(self._console), self._bars:
            yield

    def _with_time_left(self, live: str) -> str:
        left = self._run_position.left()
        return "  ".join(each for each in (live, left and f"whole run: {left}") if each)


class QuietProgress(RichProgress):
    """Prints nothing."""

    def __init__(self) -> None:
        super().__init__(Terminal(quiet=True))

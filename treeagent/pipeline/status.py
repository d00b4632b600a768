"""RUN/progress.json: the progress of a run. The run writes it while it works, and ``treeagent watch`` reads it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import orjson
from pydantic import TypeAdapter

from treeagent.store import StoreError, regular, write_atomic

FILE = "progress.json"


@dataclass(frozen=True, slots=True)
class StageStatus:
    """One of the stages that a run goes through in a fixed order."""

    name: str
    state: Literal["done", "running", "left"]
    done: float
    """Fraction of the stage that is done."""
    seconds: float
    """Wall time since the stage started, or that it took; 0 if an earlier, interrupted run did it."""


@dataclass(frozen=True, slots=True)
class WorkStatus:
    """A piece of work that is running, such as the search of one round."""

    name: str
    done: int
    total: int
    resumed: int
    """The part of ``done`` that an earlier, interrupted run did."""
    seconds: float
    """Wall time since its start."""
    live: str
    """Figures to show beside it, such as simulations/s."""

    @property
    def rate(self) -> float:
        """Items done per second; 0 before the first one."""
        return (self.done - self.resumed) / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds for the rest at this rate; None before the first item is done."""
        return (self.total - self.done) / self.rate if self.rate > 0 else None


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The progress of a run."""

    written: float
    """Time of writing, in seconds since 1970."""
    seconds: float
    """Wall time since the program began to work on the run."""
    seconds_left: float | None
    """Estimated seconds of the rest of the run; None while too little of it is done, or if no stages were announced."""
    stages: tuple[StageStatus, ...]
    """The stages in order; empty if none were announced."""
    works: tuple[WorkStatus, ...]
    """The pieces of work that are running."""
    warnings: tuple[str, ...]
    """Warnings so far, the latest last."""
    finished: bool
    """Whether the program has done all its work; False if it failed or was stopped."""


_STATUS = TypeAdapter(RunStatus)


def write_status(path: Path, status: RunStatus) -> None:
    """Write the file atomically.

    Raises:
        StoreError: the file cannot be written.
    """
    write_atomic(path, orjson.dumps(asdict(status), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def read_status(run: Path) -> RunStatus | None:
    """Read the progress of the run in a folder; None if the run has not begun, or if an older version without this file
    made it.

    Raises:
        StoreError: the file is damaged.
    """
    path = run / FILE
    try:
        return _STATUS.validate_json(regular(path).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:  # pydantic's error is a subclass
        raise StoreError(f"{path} is damaged: delete it; the run writes it again as it goes on") from None


def in_words(seconds: float) -> str:
    """A rounded time in words: "12 s", "4 min" or "2 h 10 min"."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"

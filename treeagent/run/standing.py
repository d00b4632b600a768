"""RUN/progress.json: how far a run has come, which the run writes while it works and ``treeagent watch`` reads."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import orjson
from pydantic import TypeAdapter

from treeagent.store import StoreError, regular, write_atomic

FILE = "progress.json"


@dataclass(frozen=True, slots=True)
class StageStanding:
    """One of the stages that a run goes through in a fixed order."""

    name: str
    state: Literal["done", "running", "left"]
    done: float
    """Fraction of the stage that is done."""
    seconds: float
    """Wall time since its start, or that it took; 0 where an earlier, interrupted run did it."""


@dataclass(frozen=True, slots=True)
class WorkStanding:
    """A piece of work that is being done, such as the search of one round."""

    name: str
    done: int
    total: int
    resumed: int
    """How many of ``done`` an earlier, interrupted run did."""
    seconds: float
    """Wall time since its start."""
    live: str
    """Figures to show beside it, such as simulations/s."""

    @property
    def rate(self) -> float:
        """How many are done per second; 0 before the first."""
        return (self.done - self.resumed) / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """How long the rest will take at this rate; None before the first is done."""
        return (self.total - self.done) / self.rate if self.rate > 0 else None


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a run has come."""

    written: float
    """When this was written, in seconds since 1970."""
    seconds: float
    """Wall time since the program began to work on the run."""
    seconds_left: float | None
    """Estimate of the rest of the whole run; None while too little has been seen, or where no stages were announced."""
    stages: tuple[StageStanding, ...]
    """In their order; empty where none were announced."""
    works: tuple[WorkStanding, ...]
    """What is being done now."""
    warnings: tuple[str, ...]
    """What a user should know, the latest last."""
    finished: bool
    """Whether the program has done all that it was asked for."""


_STANDING = TypeAdapter(Standing)


def write_standing(path: Path, standing: Standing) -> None:
    """Write the file, whole or not at all.

    Raises:
        StoreError: the file system refused.
    """
    write_atomic(path, orjson.dumps(asdict(standing), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def read_standing(run: Path) -> Standing | None:
    """How far the run in a folder has come; None where it has not begun, or was made by a version that told nothing.

    Raises:
        StoreError: the file is damaged.
    """
    path = run / FILE
    try:
        return _STANDING.validate_json(regular(path).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:  # pydantic's error is one
        raise StoreError(f"{path} is damaged: delete it; the run writes it again as it goes on") from None


def in_words(seconds: float) -> str:
    """A rough time: "12 s", "4 min" or "2 h 10 min"."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"

"""How episodes of an evaluation went. Finished batches are kept on disk until their row is complete, so that a resumed
evaluation plays none of them twice.

A batch is a file ``<stage>-<index>.json``, written atomically.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter

from treeagent.config import Mode
from treeagent.search.node import Budget, reaches
from treeagent.store import write_atomic
from treeagent.types import (
    UserError,
    storable,
)

Row = dict[str, Any]
"""One row of results, as ``summarise`` makes it."""


@dataclass(slots=True)
class Outcome:
    """The result of one episode of an evaluation."""

    task_id: str
    reward: float
    """Return of the executed episode, undiscounted."""
    steps: int
    """Steps of the executed episode."""
    budget: Budget = field(default_factory=Budget)
    """What planning and execution cost together."""
    error: str = ""
    """Why the episode or its planning failed; empty if neither did."""

    @property
    def success(self) -> bool:
        """Whether the return is 1, full marks."""
        return reaches(self.reward, 1.0)


@dataclass(frozen=True, slots=True)
class PlayedBatch:
    """The results of one batch."""

    tasks: tuple[int, ...]
    """Indices of the tasks in the split."""
    outcomes: tuple[Outcome, ...]
    """In the order of ``tasks``."""
    seconds: float
    """Wall time of the batch."""
    shard: str = ""
    """File name of the shard with the trees that were planned in; empty if none were stored."""


_BATCH = TypeAdapter(PlayedBatch)


def keep_batch(folder: Path, stage: str, index: int, batch: PlayedBatch) -> None:
    """Write a finished batch.

    Raises:
        StoreError: the file system refused; no partial file is left.
    """
    folder.mkdir(exist_ok=True)
    written = replace(batch, outcomes=tuple(replace(each, error=storable(each.error)) for each in batch.outcomes))
    write_atomic(_path(folder, stage, index), orjson.dumps(asdict(written)))


def kept_batch(folder: Path, stage: str, index: int, tasks: Sequence[int], trees: Path) -> PlayedBatch | None:
    """The finished batch, or None if it is missing, damaged, of other tasks, or without its trees."""
    try:
        batch = _BATCH.validate_json(_path(folder, stage, index).read_bytes())
    except (FileNotFoundError, ValueError):  # pydantic's error is a ValueError
        return None
    whole = batch.tasks == tuple(tasks) and len(batch.outcomes) == len(tasks)
    return batch if whole and (not batch.shard or (trees / batch.shard).exists()) else None


def forget_batches(folder: Path, stage: str, indices: Iterable[int]) -> None:
    """Remove the batches of a stage, and the folder if it is then empty."""
    for index in indices:
        _path(folder, stage, index).unlink(missing_ok=True)
    with suppress(OSError):  # it holds batches of other stages, or does not exist
        folder.rmdir()


def _path(folder: Path, stage: str, index: int) -> Path:
    return folder / f"{stage}-{index:05d}.json"


def summarise(policy: str, mode: Mode, outcomes: Sequence[Outcome], seconds: float) -> dict[str, float | int | str]:
    """One row of results, with the 95 % Wilson interval of success.

    Raises:
        UserError: there are no outcomes, or every episode failed before its first step.
    """
    if not outcomes:
        raise UserError(f"{policy} in mode {mode} has no outcomes to summarise: evaluate it on one task or more")
    error = next((" ".join(storable(outcome.error).split()) for outcome in outcomes if outcome.error), "")
    if went_nowhere(outcomes):
        raise UserError(
            f"all {len(outcomes)} episodes of {policy} in mode {mode} failed before their first step, the first with "
            f"{error!r}: mend the cause, then continue with --resume"
        )
    successes = sum(outcome.success for outcome in outcomes)
    low, high = wilson_interval(successes, len(outcomes))
    return {
        "policy": policy,
        "mode": mode,
        "success": successes / len(outcomes),
        "success_low": low,
        "success_high": high,
        "reward": sum(outcome.reward for outcome in outcomes) / len(outcomes),
        "tasks": len(outcomes),
        "errors": sum(bool(outcome.error) for outcome in outcomes),
        "error": error,
        "steps": sum(outcome.steps for outcome in outcomes) / len(outcomes),
        "environment_steps": sum(outcome.budget.environment_steps for outcome in outcomes),
        "generated_tokens": sum(outcome.budget.generated_tokens for outcome in outcomes),
        "seconds": seconds,
    }


def went_nowhere(outcomes: Sequence[Outcome]) -> bool:
    """Whether every episode failed before its first step, as when a server answers no request."""
    return all(outcome.error and not outcome.steps for outcome in outcomes)


def wilson_interval(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927), by default of 95 %. It is valid near 0 and 1, too."""
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max((centre - spread) / scale, 0.0), min((centre + spread) / scale, 1.0)

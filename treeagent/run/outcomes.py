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
    """How one task went."""

    task_id: str
    reward: float
    steps: int
    budget: Budget = field(default_factory=Budget)
    """Planning and execution together."""
    error: str = ""

    @property
    def success(self) -> bool:
        """The verifier gave full marks: a reward of 1."""
        return reaches(self.reward, 1.0)


@dataclass(frozen=True, slots=True)
class PlayedBatch:
    """How a batch went."""

    tasks: tuple[int, ...]
    """Their places in the split."""
    outcomes: tuple[Outcome, ...]
    """In the tasks' order."""
    seconds: float
    shard: str = ""
    """The file that holds the trees it planned in; empty where it stored none."""


_WAVE = TypeAdapter(PlayedBatch)


def keep_batch(folder: Path, stage: str, index: int, batch: PlayedBatch) -> None:
    """
    Raises:
        StoreError: the file system refused; nothing is left behind.
    """
    folder.mkdir(exist_ok=True)
    told = replace(batch, outcomes=tuple(replace(each, error=storable(each.error)) for each in batch.outcomes))
    write_atomic(_path(folder, stage, index), orjson.dumps(asdict(told)))


def kept_batch(folder: Path, stage: str, index: int, tasks: Sequence[int], trees: Path) -> PlayedBatch | None:
    """The batch, if it is there whole, of these tasks and with its trees: what is damaged is played again."""
    try:
        batch = _WAVE.validate_json(_path(folder, stage, index).read_bytes())
    except (FileNotFoundError, ValueError):  # pydantic's error is a ValueError
        return None
    whole = batch.tasks == tuple(tasks) and len(batch.outcomes) == len(tasks)
    return batch if whole and (not batch.shard or (trees / batch.shard).exists()) else None


def forget_batches(folder: Path, stage: str, indices: Iterable[int]) -> None:
    """Remove what was kept of a stage, and the folder with the last of it."""
    for index in indices:
        _path(folder, stage, index).unlink(missing_ok=True)
    with suppress(OSError):  # other stages' batches are in it, or it never was
        folder.rmdir()


def _path(folder: Path, stage: str, index: int) -> Path:
    return folder / f"{stage}-{index:05d}.json"


def summarise(policy: str, mode: Mode, outcomes: Sequence[Outcome], seconds: float) -> dict[str, float | int | str]:
    """One row of results. The interval of success is Wilson's, 95 %.

    Raises:
        UserError: there are no outcomes, or none that says anything of the policy: all episodes failed before a step.
    """
    if not outcomes:
        raise UserError(f"{policy} in mode {mode} has no outcomes to summarise: evaluate it on one task or more")
    error = next((" ".join(storable(outcome.error).split()) for outcome in outcomes if outcome.error), "")
    if went_nowhere(outcomes):
        raise UserError(
            f"no episode of {policy} in mode {mode} took a step, for all {len(outcomes)} failed, the first as follows "
            f"({error}): mend that, then continue with --resume"
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
    """Every episode failed before its first step, as where no request is answered."""
    return all(outcome.error and not outcome.steps for outcome in outcomes)


def wilson_interval(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a proportion (1927), by default 95 %; it holds near 0 and 1, too."""
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max((centre - spread) / scale, 0.0), min((centre + spread) / scale, 1.0)

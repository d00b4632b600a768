"""Means over seeds and paired differences between arms, with 95 % t-intervals. All result pages use these functions.

The unit is the seed. Each seed has its own test tasks and its own policy. The tasks of one seed share that policy, so
they are not independent, and tasks are never pooled over seeds.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import stats

from benchmarks.record import Result, Row
from treeagent.types import UserError

Figure = Callable[[Row], float]
Verdict = Literal["more", "less", "level"]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds."""

    mean: float
    half: float | None
    """Half the width of the 95 % t-interval; None for a single seed, which has no interval."""
    values: tuple[float, ...]
    """One value per seed, in the order of the seeds."""

    @property
    def low(self) -> float:
        return -math.inf if self.half is None else self.mean - self.half

    @property
    def high(self) -> float:
        return math.inf if self.half is None else self.mean + self.half

    @property
    def verdict(self) -> Verdict:
        """The sign of a difference; "level" if its interval includes 0 or if there is a single seed."""
        return "more" if self.low > 0 else "less" if self.high < 0 else "level"

    @property
    def seeds(self) -> int:
        return len(self.values)


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of one value per seed with its 95 % interval: x̄ ± t(0.975, n - 1) s / √n (Student 1908)."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean, None, tuple(values))
    quantile = float(stats.t.ppf(0.975, len(values) - 1))
    return Estimate(mean, quantile * statistics.stdev(values) / math.sqrt(len(values)), tuple(values))


def percent(row: Row) -> float:
    """Success in %."""
    return 100 * row.success


def figure(name: str) -> Figure:
    """A function that reads one of a row's further numbers."""
    return lambda row: row.figures[name]


def mean(result: Result, arm: str, of: Figure = percent) -> Estimate:
    """An arm's mean over its seeds."""
    return estimate([of(row) for row in result.of(arm).values()])


def difference(result: Result, arm: str, control: str, of: Figure = percent) -> Estimate:
    """The mean difference between an arm and a control, over the seeds that both have.

    Within a seed both arms played the same tasks, so the difference of their success rates is the mean of the
    differences per task.

    Raises:
        UserError: the arms have no seed in common, or played different tasks.
    """
    pairs = paired(result.of(arm), result.of(control))
    if not pairs:
        raise UserError(f"{arm!r} and {control!r} have no seed in common: measure both on the same seeds")
    for one, other in pairs:
        if (one.first_task, one.tasks) != (other.first_task, other.tasks):
            raise UserError(f"{arm!r} and {control!r} played other tasks in seed {one.seed}: measure both again")
    return estimate([of(one) - of(other) for one, other in pairs])


def paired(ours: Mapping[int, Row], theirs: Mapping[int, Row]) -> list[tuple[Row, Row]]:
    """The pairs of rows of the seeds that both arms have."""
    return [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]

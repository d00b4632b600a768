"""How far a reward model can be trusted: its metrics on ends of held-out tasks, and the weight that these allow.

Optimisation against a reward model exploits its errors. The audit therefore also lets the model choose the best of n
stored ends, and compares its score for that end with the true return as n grows (Gao, Schulman and Hilton 2023).
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, groupby
from pathlib import Path
from statistics import correlation, fmean
from typing import Any

import orjson

from treeagent.store import regular
from treeagent.types import UserError
from treeagent.views.signal import auc
from treeagent.world_model.fidelity import wilson_interval

FILE = "audit.json"
"""Name of the file in a reward model's folder that holds ``RewardAudit.to_json``."""
_BINS = 10
_SAME = 1e-9
"""Two returns that differ by less than this are equal."""
_MOST = 64
"""Greatest n in best-of-n."""


@dataclass(frozen=True, slots=True)
class ScoredEnd:
    """The end of an episode of a held-out task."""

    task_id: str
    score: float
    """V of the reward model, in reward units."""
    paid: float
    """The true return, in reward units."""
    success: bool
    tokens: int
    """Number of tokens after the task's prompt."""


@dataclass(frozen=True, slots=True)
class BestOf:
    """Best-of-n by the model's score: the end with the highest score among n, drawn with replacement from the stored
    ends of a task. All numbers are means over the tasks with ends that differ in return."""

    n: int
    score: float
    """Expected score of the chosen end, which is what the model predicts."""
    paid: float
    """Expected true return of the chosen end."""
    possible: float
    """Expected return of the truly best end among n, which a perfect model would choose."""


@dataclass(frozen=True, slots=True)
class RewardAudit:
    """The results of an audit. A metric is None if there are no ends or pairs to compute it from."""

    tasks: int
    ends: int
    pairs: int
    """Pairs of ends of one task with different returns."""
    pair_accuracy: float | None
    """Share of these pairs that the model ranks correctly; equal scores count half."""
    longer_worse: int
    """Number of these pairs in which the longer end is the worse one."""
    longer_worse_accuracy: float | None
    """``pair_accuracy`` on these pairs. A model that prefers length fails here."""
    auc: float | None
    """Probability that a success has a higher score than a failure, over the ends of all tasks."""
    calibration_error: float | None
    """Expected calibration error: mean |mean score - mean return| over ten equal bins of the score, weighted by the
    number of ends in each, as a share of the range of returns."""
    length_correlation: float | None
    """Correlation between score and length over all ends."""
    mixed_tasks: int
    """Number of tasks with ends that differ in return."""
    best_of: tuple[BestOf, ...]
    """The best-of-n curve, for n = 1, 2, 4 and so on."""
    cap: float
    """The largest weight that the model may have; see the function ``cap``."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def audit(
    found: Sequence[ScoredEnd],
    returns: tuple[float, float] = (0.0, 1.0),
) -> RewardAudit:
    """Compute the metrics of a reward model on ends of held-out tasks.

    Args:
        returns: range of the scores.
    """
    tasks = [list(group) for _, group in groupby(sorted(found, key=lambda end: end.task_id), lambda end: end.task_id)]
    pairs = [
        (first, second) if first.paid > second.paid else (second, first)
        for ends in tasks
        for first, second in combinations(ends, 2)
        if abs(first.paid - second.paid) > _SAME
    ]
    longer = [(better, worse) for better, worse in pairs if worse.tokens > better.tokens]
    mixed = [ends for ends in tasks if max(end.paid for end in ends) - min(end.paid for end in ends) > _SAME]
    most = max((len(ends) for ends in mixed), default=1)
    numbers = [2**power for power in range(_MOST.bit_length()) if 2**power < 2 * most]
    curve = tuple(best_of(mixed, n) for n in numbers) if mixed else ()
    return RewardAudit(
        tasks=len(tasks),
        ends=len(found),
        pairs=len(pairs),
        pair_accuracy=_ordered([(better.score, worse.score) for better, worse in pairs]),
        longer_worse=len(longer),
        longer_worse_accuracy=_ordered([(better.score, worse.score) for better, worse in longer]),
        auc=auc([end.score for end in found if end.success], [end.score for end in found if not end.success]),
        calibration_error=calibration_error(found, returns),
        length_correlation=_correlation([end.score for end in found], [end.tokens for end in found]),
        mixed_tasks=len(mixed),
        best_of=curve,
        cap=cap(curve, len(mixed)),
    )


def best_of(tasks: Sequence[Sequence[ScoredEnd]], n: int) -> BestOf:
    """The point of the best-of-n curve at ``n``. The end with rank i of m is the highest of n draws with probability
    (i/m)^n - ((i-1)/m)^n; ends with equal scores share their probabilities."""
    return BestOf(
        n,
        fmean(_expected([(end.score, end.score) for end in ends], n) for ends in tasks),
        fmean(_expected([(end.score, end.paid) for end in ends], n) for ends in tasks),
        fmean(_expected([(end.paid, end.paid) for end in ends], n) for ends in tasks),
    )


def _expected(ranked: Sequence[tuple[float, float]], n: int) -> float:
    """The expected second number of the pair whose first number is the highest among n draws."""
    total, below, count = 0.0, 0, len(ranked)
    for _, group in groupby(sorted(ranked), key=lambda pair: pair[0]):
        values = [second for _, second in group]
        upto = below + len(values)
        total += ((upto / count) ** n - (below / count) ** n) * fmean(values)
        below = upto
    return total


def cap(curve: Sequence[BestOf], tasks: int) -> float:
    """The largest weight that the model may have, in [0, 1].

    It is the share of the possible gain that choosing by the model brings,
    (paid(n) - paid(1)) / (possible(n) - paid(1)), at the n where this share is lowest. A model gets 0 if at any n it
    chooses no better than chance, for example because its choice gets worse the more it is optimised. The result is the
    lower end of the 95 % Wilson interval of that share over ``tasks``, so that a small audit allows little.
    """
    shares = [
        (point.paid - curve[0].paid) / gain for point in curve[1:] if (gain := point.possible - curve[0].paid) > _SAME
    ]
    return wilson_interval(max(min(shares), 0.0) * tasks, tasks)[0] if shares else 0.0


def calibration_error(found: Sequence[ScoredEnd], returns: tuple[float, float] = (0.0, 1.0)) -> float | None:
    """Expected calibration error of the scores; see ``RewardAudit.calibration_error``."""
    low, span = returns[0], returns[1] - returns[0]
    bins: dict[int, list[ScoredEnd]] = {}
    for end in found:
        bins.setdefault(min(int((end.score - low) / span * _BINS), _BINS - 1), []).append(end)
    gaps = [
        len(ends) * abs(fmean(end.score for end in ends) - fmean(end.paid for end in ends)) for ends in bins.values()
    ]
    return sum(gaps) / len(found) / span if found else None


def _ordered(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Share of pairs with a greater first number; equal ones count half."""
    return fmean(1.0 if first > second else 0.5 * (first == second) for first, second in pairs) if pairs else None


def _correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Pearson's r; None if either sequence does not vary."""
    varies = all(max(values, default=0.0) - min(values, default=0.0) > _SAME for values in (one, other))
    return correlation(one, other) if varies else None


def read_audit(model: Path) -> dict[str, Any]:
    """Read the audit in a reward model's folder.

    Raises:
        UserError: the folder holds no audited reward model.
    """
    path = model / FILE
    try:
        found = orjson.loads(regular(path).read_bytes())
        if math.isfinite(found["cap"]):
            return dict(found)
    except FileNotFoundError:
        raise UserError(
            f"{str(model)!r} holds no audited reward model (no {FILE}): give the folder that "
            "treeagent reward fit RUN wrote, RUN/checkpoints/reward"
        ) from None
    except (ValueError, KeyError, TypeError):
        pass
    raise UserError(f"{path} is damaged: fit the reward model again (treeagent reward fit RUN)")

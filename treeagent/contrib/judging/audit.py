"""How far a reward model can be trusted: metrics on ends of held-out tasks, and the weight that they allow. The model
also chooses the best of n stored ends, because optimisation exploits its errors (Gao, Schulman and Hilton 2023)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import orjson

from treeagent.store import regular
from treeagent.types import UserError
from treeagent.world_model.fidelity import wilson_interval

FILE = "audit.json"
"""Name of the file in a reward model's folder that holds the ``RewardAudit``."""
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


@dataclass(frozen=True, slots=True)
class BestOf:
    """Best-of-n by the model's score: the end with the highest score among n, drawn with replacement from the stored
    ends of a task. Means over the tasks with ends that differ in return."""

    n: int
    score: float
    """Expected score of the chosen end, which is what the model predicts."""
    paid: float
    """Expected true return of the chosen end."""
    possible: float
    """Expected return of the truly best end among n, which a perfect model would choose."""


@dataclass(frozen=True, slots=True)
class RewardAudit:
    """The results of an audit."""

    tasks: int
    ends: int
    pairs: int
    """Pairs of ends of one task with different returns."""
    pair_accuracy: float | None
    """Share of these pairs that the model ranks correctly; equal scores count half. None without pairs."""
    best_of: tuple[BestOf, ...]
    """The best-of-n curve, for n = 1, 2, 4 and so on."""
    cap: float
    """The largest weight that the model may have; see the function ``cap``."""


def audit(found: Sequence[ScoredEnd]) -> RewardAudit:
    """Compute the metrics of a reward model on ends of held-out tasks."""
    tasks = [list(group) for _, group in groupby(sorted(found, key=lambda end: end.task_id), lambda end: end.task_id)]
    pairs = [
        (first, second) if first.paid > second.paid else (second, first)
        for ends in tasks
        for first, second in combinations(ends, 2)
        if abs(first.paid - second.paid) > _SAME
    ]
    right = [1.0 if better.score > worse.score else 0.5 * (better.score == worse.score) for better, worse in pairs]
    mixed = [ends for ends in tasks if max(end.paid for end in ends) - min(end.paid for end in ends) > _SAME]
    most = max((len(ends) for ends in mixed), default=1)
    numbers = [2**power for power in range(_MOST.bit_length()) if 2**power < 2 * most]
    curve = tuple(best_of(mixed, n) for n in numbers) if mixed else ()
    return RewardAudit(
        tasks=len(tasks),
        ends=len(found),
        pairs=len(pairs),
        pair_accuracy=fmean(right) if right else None,
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
    """The largest weight that the model may have: the share of the possible gain that choosing by it brings, (paid(n) -
    paid(1)) / (possible(n) - paid(1)), at the worst n, as the lower end of its 95 % Wilson interval over tasks."""
    shares = [
        (point.paid - curve[0].paid) / gain for point in curve[1:] if (gain := point.possible - curve[0].paid) > _SAME
    ]
    return wilson_interval(max(min(shares), 0.0) * tasks, tasks)[0] if shares else 0.0


def value_of(score: float, slope: float, shift: float, returns: Sequence[float]) -> float:
    """V = low + (high - low) σ(slope · u + shift) of a score u, in reward units."""
    low, high = returns
    return low + (high - low) * 0.5 * (1 + math.tanh((slope * score + shift) / 2))  # σ, without overflow


def read_audit(model: Path) -> dict[str, Any]:
    """Read the audit in a reward model's folder."""
    try:
        return dict(orjson.loads(regular(model / FILE).read_bytes()))
    except FileNotFoundError:
        raise UserError(
            f"{str(model)!r} holds no audited reward model (no {FILE}): give the folder that "
            "treeagent reward RUN wrote, RUN/checkpoints/reward"
        ) from None

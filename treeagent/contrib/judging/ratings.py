"""Ratings of policies from pairwise comparisons: Bradley-Terry on Elo's scale, with bootstrap intervals over tasks.

In the model (Bradley and Terry 1952), policy i does a task better than policy j with probability
1 / (1 + 10^((R_j - R_i) / 400)), where R are the ratings. A tie counts as half a win for each.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MEAN = 1000.0
"""Mean rating of all policies. Only differences between ratings have a meaning."""
_RESAMPLES = 1000
_MOST_STEPS = 10_000
_PRECISE = 1e-6
"""Greatest change of a log-strength in the last step of the fit."""


@dataclass(frozen=True, slots=True)
class Rating:
    """The strength of a policy relative to those that it was compared with."""

    value: float
    low: float | None
    """Lower bound of the 95 % confidence interval over tasks. It is None, as is ``high``, if all tasks agree on how the
    policy does against each other policy: resampled tasks then say nothing about chance."""
    high: float | None
    comparisons: int
    """Number of comparisons with this policy."""


def rate(scores: Array, seed: int = 0) -> list[Rating | None]:
    """The rating of each policy; None for a policy that no chain of comparisons connects with the first policy.

    One tie is added between any two policies that were compared, so that a policy that always won has a finite rating.
    It weighs as much as the comparison on one task.

    Args:
        scores: [tasks, policies, policies]: 1 if the row's policy did the task better than the column's, 0.5 for a tie,
            0 for worse; NaN if the two were not compared. ``scores[t, j, i]`` is 1 - ``scores[t, i, j]``.
        seed: random seed of the resampling of tasks.
    """
    tasks, policies = scores.shape[:2]
    known = ~np.isnan(scores) & ~np.eye(policies, dtype=bool)
    met = np.asarray(known.any(axis=0))
    linked = np.asarray(np.linalg.matrix_power(met.astype(float) + np.eye(policies), policies)[0] > 0)
    if linked.sum() < 2:
        return [None] * policies
    wins = np.where(known, scores, 0.0)[:, linked][:, :, linked].reshape(tasks, -1)
    tie, size = met[linked][:, linked] / 2, int(linked.sum())
    resamples = np.random.default_rng(seed).multinomial(tasks, np.full(tasks, 1 / tasks), _RESAMPLES)
    counts = np.vstack([np.ones((1, tasks)), resamples])
    found = bradley_terry((counts @ wins).reshape(-1, size, size) + tie)
    low, high = np.quantile(found[1:], (0.025, 0.975), axis=0)
    alike = np.where(known, scores, -np.inf).max(axis=0) <= np.where(known, scores, np.inf).min(axis=0)
    agreed = alike.all(axis=1)
    numbers = known.sum(axis=(0, 2))
    ratings: list[Rating | None] = [None] * policies
    for index, policy in enumerate(np.flatnonzero(linked)):
        least, most = (None if agreed[policy] else float(each[index]) for each in (low, high))
        ratings[policy] = Rating(float(found[0][index]), least, most, int(numbers[policy]))
    return ratings


def bradley_terry(wins: Array) -> Array:
    """The maximum-likelihood ratings, [..., policies], with mean ``MEAN``. They are computed by the iteration of Hunter
    (2004), equation 3, in which each step raises the likelihood.

    Args:
        wins: [..., policies, policies]: how often the row's policy beat the column's. Every policy must have a win, and
            comparisons must connect all policies.
    """
    games = wins + np.swapaxes(wins, -1, -2)
    won = wins.sum(-1)
    logs = np.zeros(won.shape)
    for _ in range(_MOST_STEPS):
        strengths = np.exp(logs)
        pairs = strengths[..., :, None] + strengths[..., None, :]
        step = np.log(won) - np.log((games / pairs).sum(-1))
        step -= step.mean(-1, keepdims=True)
        change = np.abs(step - logs).max()
        logs = step
        if change < _PRECISE:
            break
    return np.asarray(MEAN + 400.0 * logs / np.log(10.0))

"""How often a reward's word on success agrees with the environment's, over the ends in stored trees."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from treeagent.search.node import Tree, finished_paths, reaches

_SUCCESS = 0.5
"""Lowest return by another reward that counts as a success."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Ends with both words on success."""

    ends: int
    share: float
    """Share of ends on which they agree; 0 without ends."""
    kappa: float | None
    """Cohen's κ; None if both always say the same one word."""
    open: int
    """Ends whose reward is open, because there was no verdict."""


def agreement(trees: Iterable[Tree]) -> Agreement:
    """Compare the returns of finished paths by the reward that search saw with those by the environment's own."""
    pairs, unknown = list[tuple[bool, bool]](), 0
    for tree in trees:
        for path in finished_paths(tree):
            if path[-1].own_reward is None:
                continue
            if path[-1].reward is None:
                unknown += 1
                continue
            paid = sum(edge.reward or 0.0 for edge in path)
            own = sum(edge.outcome or 0.0 for edge in path)
            pairs.append((paid >= _SUCCESS, reaches(own, 1.0)))
    share = sum(one == other for one, other in pairs) / len(pairs) if pairs else 0.0
    return Agreement(len(pairs), share, cohen_kappa(pairs), unknown)


def cohen_kappa(pairs: Sequence[tuple[bool, bool]]) -> float | None:
    """κ = (p_o - p_e) / (1 - p_e) of two raters (Cohen 1960). p_o is the share of equal ratings, and p_e is the share
    expected by chance from each rater's own shares. None if both raters give only one and the same rating."""
    count = len(pairs)
    first, second = (sum(pair[rater] for pair in pairs) / count for rater in (0, 1)) if count else (0.0, 0.0)
    expected = first * second + (1 - first) * (1 - second)
    if expected == 1.0:
        return None
    return (sum(one == other for one, other in pairs) / count - expected) / (1 - expected)

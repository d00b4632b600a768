"""How well V(s) separates states from which search found a success from other states: by depth, at ends, among
siblings."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pvariance
from typing import Literal

import numpy as np

from treeagent.search.node import Tree, path_origin, succeeds


@dataclass(frozen=True, slots=True)
class ValueSignal:
    """How informative V(s) is over some states of searched trees."""

    depth: int | Literal["all", "ends"]
    """Steps from the root to the states, or "all" for all depths together. "ends" are the states at which the task
    ended, where V must estimate the outcome if rewards are withheld; the other rows exclude them."""
    states: int
    found: int
    """Number of states from which a success was found."""
    auc: float | None
    """Probability that V is greater at a random state from which a success was found than at a random other one."""
    separation: float | None
    """d': the distance between the means of V at the two kinds of states, in standard deviations within a kind."""
    siblings: float | None
    """Share of ``pairs`` in which V is greater at the sibling that led to a success. Ties count half."""
    pairs: int
    """Number of pairs of siblings of which exactly one led to a success."""


@dataclass(slots=True)
class _Values:
    """V at the states of one row."""

    good: list[float] = field(default_factory=list[float])
    bad: list[float] = field(default_factory=list[float])
    right: float = 0.0
    """Number of pairs of siblings in the right order."""
    pairs: int = 0

    def row(self, depth: int | Literal["all", "ends"]) -> ValueSignal:
        good, bad = self.good, self.bad
        siblings = self.right / self.pairs if self.pairs else None
        count = len(good) + len(bad)
        return ValueSignal(depth, count, len(good), auc(good, bad), separation(good, bad), siblings, self.pairs)


def value_signal(trees: Iterable[Tree]) -> list[ValueSignal]:
    """A row for each depth, then one for all depths and one for ends. Empty if the trees have no finished real path. A
    state counts if it is real and a finished path leads through it, and is good if one of these paths succeeds."""
    depths: dict[int, _Values] = {}
    every, ends = _Values(), _Values()
    for tree in trees:
        found = _success_below(tree)
        for path, node in tree.walk():
            if id(node) not in found or (node.ended and not node.terminated):
                continue
            for row in [ends] if node.ended else [every, depths.setdefault(len(path), _Values())]:
                (row.good if found[id(node)] else row.bad).append(node.value)
            children = [edge.child for edge in node.edges if edge.child is not None and id(edge.child) in found]
            for rows, alike in (
                ([ends], [child for child in children if child.terminated]),
                ([every, depths.setdefault(len(path) + 1, _Values())], [each for each in children if not each.ended]),
            ):
                good = [child.value for child in alike if found[id(child)]]
                bad = [child.value for child in alike if not found[id(child)]]
                for row in rows:
                    row.pairs += len(good) * len(bad)
                    row.right += _ordered_pairs(good, bad)
    by_depth = [depths[depth].row(depth) for depth in sorted(depths) if depths[depth].good or depths[depth].bad]
    return [*by_depth, every.row("all"), ends.row("ends")] if by_depth else []


def signal_figures(rows: Iterable[ValueSignal]) -> dict[str, float]:
    """The rows "all" and "ends" as metrics: ``value_auc``, ``value_separation``, ``value_siblings``, and
    ``value_auc_ends`` and the like. Metrics that cannot be computed are left out."""
    figures: dict[str, float] = {}
    for row in rows:
        suffix = {"all": "", "ends": "_ends"}.get(str(row.depth))
        for name in ("auc", "separation", "siblings") if suffix is not None else ():
            if (value := getattr(row, name)) is not None:
                figures[f"value_{name}{suffix}"] = value
    return figures


def _success_below(tree: Tree) -> dict[int, bool]:
    """Whether a success was found below each real state on a finished path, by the node's ``id``."""
    found: dict[int, bool] = {}
    for path, node in tree.walk():
        if path and node.final and path_origin(path) == "real":
            success = succeeds(path)
            for each in tree.states(path):
                if each.origin == "real":
                    found[id(each)] = found.get(id(each), False) or success
    return found


def _ordered_pairs(good: Sequence[float], bad: Sequence[float]) -> float:
    """Number of pairs in which the value from ``good`` is greater; ties count half."""
    return sum((above > below) + 0.5 * (above == below) for above in good for below in bad)


def auc(good: Sequence[float], bad: Sequence[float]) -> float | None:
    """Area under the ROC curve: the probability that a random value of ``good`` is greater than one of ``bad``, with
    ties counted half (Mann and Whitney's U). None if one of them is empty."""
    if not good or not bad:
        return None
    ordered = np.sort(bad)
    below = np.searchsorted(ordered, good, "left") + np.searchsorted(ordered, good, "right")
    return float(below.sum()) / 2 / (len(good) * len(bad))


def separation(good: Sequence[float], bad: Sequence[float]) -> float | None:
    """d': the difference of the means divided by the standard deviation within a kind, where the variance is the mean
    of the two variances (signal detection theory's d_a). None if one of them is empty or nothing varies."""
    if not good or not bad:
        return None
    within = math.sqrt((pvariance(good) + pvariance(bad)) / 2)
    return (fmean(good) - fmean(bad)) / within if within else None

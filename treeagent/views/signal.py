"""How well V(s) separates states from which search found a success from other states: by depth, at ends, among
siblings. Also the calibration of V(s): whether it is as high as the return that followed."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pvariance, stdev
from typing import Literal, NamedTuple

from treeagent.search.node import Edge, Node, Tree, finished_paths, outcome, path_origin, succeeds


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
    """Probability that V is greater at a random state from which a success was found than at a random one from which
    none was found."""
    separation: float | None
    """d': the distance between the means of V at the two kinds of states, in standard deviations within a kind."""
    siblings: float | None
    """Among pairs of siblings where exactly one led to a success, the share in which V is greater at that one. Ties
    count half."""
    pairs: int
    """Number of such pairs."""


@dataclass(slots=True)
class _Values:
    """V at the states of one row."""

    good: list[float] = field(default_factory=list[float])
    bad: list[float] = field(default_factory=list[float])
    right: float = 0.0
    """Number of pairs of siblings in the right order."""
    pairs: int = 0


def value_signal(trees: Iterable[Tree]) -> list[ValueSignal]:
    """A row for each depth, then one for all depths and one for ends. Empty if the trees have no finished real path.

    A state counts if it is real and a finished path leads through it. It is good if one of these paths succeeds, so its
    label says what this search found, not what could be found. The row of all depths mixes two things: what V knows
    about tasks and depths, and the order of siblings, which is what search needs.
    """
    depths: dict[int, _Values] = {}
    every, ends = _Values(), _Values()
    for tree in trees:
        found = _success_below(tree)
        for path, node in tree.walk():
            if id(node) not in found:
                continue
            if node.ended:
                rows = [ends] if node.terminated else []
            else:
                rows = [every, depths.setdefault(len(path), _Values())]
            for row in rows:
                (row.good if found[id(node)] else row.bad).append(node.value)
            children = [edge.child for edge in node.edges if edge.child is not None and id(edge.child) in found]
            _compare(children, found, [every, depths.setdefault(len(path) + 1, _Values())], ends)
    rows_by_depth = [_row(depth, depths[depth]) for depth in sorted(depths) if depths[depth].good or depths[depth].bad]
    return [*rows_by_depth, _row("all", every), _row("ends", ends)] if rows_by_depth else []


def signal_figures(rows: Iterable[ValueSignal]) -> dict[str, float]:
    """The rows "all" and "ends" as metrics: ``value_auc``, ``value_separation`` and ``value_siblings`` for all depths,
    and ``value_auc_ends`` and the like for ends. Metrics that cannot be computed are left out."""
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


def _compare(children: Sequence[Node], found: dict[int, bool], inner: Sequence[_Values], ends: _Values) -> None:
    """Count the pairs of siblings that differ in whether a success was found. Pairs of two ends count in ``ends``, and
    pairs of two states before the end in ``inner``. V at an end judges an outcome and V elsewhere predicts one, so a
    mixed pair would measure neither."""
    for kind, rows in ((True, [ends]), (False, inner)):
        alike = [child for child in children if child.ended == kind and (child.terminated or not kind)]
        good = [child.value for child in alike if found[id(child)]]
        bad = [child.value for child in alike if not found[id(child)]]
        for row in rows:
            row.pairs += len(good) * len(bad)
            row.right += _ordered_pairs(good, bad)


def _ordered_pairs(good: Sequence[float], bad: Sequence[float]) -> float:
    """Number of pairs in which the value from ``good`` is greater; ties count half."""
    return sum((above > below) + 0.5 * (above == below) for above in good for below in bad)


def _row(depth: int | Literal["all", "ends"], values: _Values) -> ValueSignal:
    return ValueSignal(
        depth,
        len(values.good) + len(values.bad),
        len(values.good),
        auc(values.good, values.bad),
        separation(values.good, values.bad),
        values.right / values.pairs if values.pairs else None,
        values.pairs,
    )


def auc(good: Sequence[float], bad: Sequence[float]) -> float | None:
    """Area under the ROC curve: the probability that a random value of ``good`` is greater than one of ``bad``, with
    ties counted half (Mann and Whitney's U, computed from the sum of ranks). None if one of them is empty."""
    if not good or not bad:
        return None
    ranked = sorted([(value, True) for value in good] + [(value, False) for value in bad])
    ranks, start = 0.0, 0
    while start < len(ranked):
        stop = start
        while stop < len(ranked) and ranked[stop][0] == ranked[start][0]:
            stop += 1
        ranks += (start + 1 + stop) / 2 * sum(is_good for _, is_good in ranked[start:stop])
        start = stop
    return (ranks - len(good) * (len(good) + 1) / 2) / (len(good) * len(bad))


def separation(good: Sequence[float], bad: Sequence[float]) -> float | None:
    """d': the difference of the means divided by the standard deviation within a kind, where the variance is the mean
    of the two variances (signal detection theory's d_a). None if one of them is empty or nothing varies."""
    if not good or not bad:
        return None
    within = math.sqrt((pvariance(good) + pvariance(bad)) / 2)
    return (fmean(good) - fmean(bad)) / within if within else None


class Estimated(NamedTuple):
    """An estimate V(s) and the quantity that it estimates, in reward units."""

    value: float
    outcome: float


@dataclass(frozen=True, slots=True)
class Bin:
    """States with similar V(s)."""

    states: int
    value: float
    """Mean of V."""
    outcome: float
    """Mean of the returns that followed."""
    low: float
    high: float
    """``low`` and ``high`` are the 95 % confidence interval of ``outcome``, by the normal distribution."""


def estimated_ends(tree: Tree) -> list[Estimated]:
    """V at each real end of the task, and the total reward of the episode, which is 0 if a judge calls it hacked. An
    end with a withheld reward counts if the reward was recorded later (``Node.paid``). V of an end without a judge's
    verdict lacks the rewards before it (``State.paid``), which are added."""
    estimates: list[Estimated] = []
    for path in finished_paths(tree):
        node = path[-1].child
        assert node is not None
        paid = _outcome_sum(path) if node.paid is None else node.paid
        if node.terminated and paid is not None and path_origin(path) == "real":
            before = sum(edge.reward or 0.0 for edge in path) if path[-1].reward is None else 0.0
            estimates.append(Estimated(node.value + before, paid))
    return estimates


def _outcome_sum(path: Sequence[Edge]) -> float | None:
    return None if any(edge.outcome is None for edge in path) else outcome(path)


def estimated_states(tree: Tree) -> list[Estimated]:
    """V at each real state before an end, and the mean return from there on of the finished real paths through it.
    Search chooses these paths. If it finds the better ones, V of the policy alone is lower than their mean."""
    below: dict[int, tuple[Node, list[float]]] = {}
    for path in finished_paths(tree):
        if path_origin(path) != "real" or any(edge.reward is None for edge in path):
            continue
        total = 0.0
        for index in range(len(path) - 1, -1, -1):
            edge = path[index]
            total = (edge.reward or 0.0) + edge.discount(tree.discount) * total
            node = path[index - 1].child if index else tree.root
            if node is not None and node.origin == "real":
                below.setdefault(id(node), (node, []))[1].append(total)
    return [Estimated(node.value, fmean(returns)) for node, returns in below.values()]


def calibration(estimates: Sequence[Estimated], bins: int = 10) -> list[Bin]:
    """Sort the estimates by V and split them into ``bins`` groups of about equal size. Equal values of V are in one
    group."""
    ranked = sorted(estimates)
    groups: list[Bin] = []
    start = 0
    stops = [round(len(ranked) * (index + 1) / bins) for index in range(bins)]
    while start < len(ranked):
        stop = next(each for each in stops if each > start)  # a group of equal values may have passed several
        while stop < len(ranked) and ranked[stop].value == ranked[stop - 1].value:
            stop += 1
        group = ranked[start:stop]
        outcomes = [each.outcome for each in group]
        mean, error = fmean(outcomes), stdev(outcomes) / math.sqrt(len(group)) if len(group) > 1 else 0.0
        value = fmean(each.value for each in group)
        groups.append(Bin(len(group), value, mean, mean - 1.96 * error, mean + 1.96 * error))
        start = stop
    return groups


def calibration_error(bins: Sequence[Bin]) -> float:
    """Mean of |V - outcome| over groups, weighted by their number of states (expected calibration error; Naeini et al.
    2015)."""
    states = sum(each.states for each in bins)
    return sum(each.states * abs(each.value - each.outcome) for each in bins) / states if states else 0.0

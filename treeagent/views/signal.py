"""How well V(s) tells states from which search found a success from the others: by depth, at ends, among siblings."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pvariance
from typing import Literal

from treeagent.search.node import Node, Tree, path_origin, succeeds


@dataclass(frozen=True, slots=True)
class ValueSignal:
    """The signal of V(s) over some states of searched trees."""

    depth: int | Literal["all", "ends"]
    """Steps from the root to the states; "all" for every depth together. "ends" are the states at which the task ended,
    which V has to judge where rewards are withheld; the other rows leave them out."""
    states: int
    found: int
    """States from which a success was found."""
    auc: float | None
    """Chance that V is greater at a random state from which a success was found than at one from which none was."""
    separation: float | None
    """d': how far the means of V at the two kinds of states are apart, in standard deviations within a kind."""
    siblings: float | None
    """Share of the pairs of siblings, of which one led to a success and the other did not, whose V is greater at the
    one that did; ties count half."""
    pairs: int
    """How many such pairs there are."""


@dataclass(slots=True)
class _Values:
    """V of the states of one row."""

    good: list[float] = field(default_factory=list[float])
    bad: list[float] = field(default_factory=list[float])
    right: float = 0.0
    """Pairs of siblings in the right order."""
    pairs: int = 0


def value_signal(trees: Iterable[Tree]) -> list[ValueSignal]:
    """A row for each depth, then one for all depths and one for ends; empty where trees have no finished real path.

    A state counts if a finished path leads through it and it is real. It is good if one of those paths succeeds, so a
    label says what this search found there, not what could be found. A row of all depths mixes what V knows of tasks
    and depths with what search needs, the order of siblings.
    """
    depths: dict[int, _Values] = {}
    every, ends = _Values(), _Values()
    for tree in trees:
        found = _found(tree)
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
    told = [_row(depth, depths[depth]) for depth in sorted(depths) if depths[depth].good or depths[depth].bad]
    return [*told, _row("all", every), _row("ends", ends)] if told else []


def signal_figures(rows: Iterable[ValueSignal]) -> dict[str, float]:
    """The rows "all" and "ends" as metrics: ``value_auc``, ``value_separation`` and ``value_siblings`` of all depths,
    ``value_auc_ends`` and the like of ends. What nobody can tell is left out."""
    figures: dict[str, float] = {}
    for row in rows:
        suffix = {"all": "", "ends": "_ends"}.get(str(row.depth))
        for name in ("auc", "separation", "siblings") if suffix is not None else ():
            if (value := getattr(row, name)) is not None:
                figures[f"value_{name}{suffix}"] = value
    return figures


def _found(tree: Tree) -> dict[int, bool]:
    """Whether a success was found below each real state through which a finished path leads, by the node's ``id``."""
    found: dict[int, bool] = {}
    for path, node in tree.walk():
        if path and node.final and path_origin(path) == "real":
            success = succeeds(path)
            for each in (tree.root, *(edge.child for edge in path)):
                if each is not None and each.origin == "real":
                    found[id(each)] = found.get(id(each), False) or success
    return found


def _compare(children: Sequence[Node], found: dict[int, bool], inner: Sequence[_Values], ends: _Values) -> None:
    """Count the pairs of siblings that differ in what was found: of two ends among ends, of two states that are none
    among ``inner``. V at an end judges an outcome and V elsewhere predicts one, so that a mixed pair tells of
    neither."""
    for kind, rows in ((True, [ends]), (False, inner)):
        alike = [child for child in children if child.ended == kind and (child.terminated or not kind)]
        good = [child.value for child in alike if found[id(child)]]
        bad = [child.value for child in alike if not found[id(child)]]
        for row in rows:
            row.pairs += len(good) * len(bad)
            row.right += _right(good, bad)


def _right(good: Sequence[float], bad: Sequence[float]) -> float:
    """Pairs whose first value is greater; ties count half."""
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
    """Area under the ROC curve: the chance that a random value of ``good`` is greater than one of ``bad``, ties half
    (Mann and Whitney's U by its sum of ranks). None where one of them is empty."""
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
    """d': the difference of the means over the standard deviation within a kind, whose variance is the mean of the two
    (signal detection theory's d_a). None where one of them is empty or nothing varies."""
    if not good or not bad:
        return None
    within = math.sqrt((pvariance(good) + pvariance(bad)) / 2)
    return (fmean(good) - fmean(bad)) / within if within else None

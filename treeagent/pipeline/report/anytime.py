"""Curves of success against cost: the success that fewer tokens, steps or seconds of search would have reached.

Every stored tree records the cost of its search at the end of each simulation (``Tree.spent``). For any smaller budget
it follows which ends had been reached, and which of them the decision "leaf" would have taken.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from treeagent.pipeline.report.chart import Chart, Line, file_name
from treeagent.search.decide import end_rank
from treeagent.search.node import Edge, Node, Spent, Tree, outcome, reaches
from treeagent.world_model.fidelity import wilson_interval

_BUDGETS = 60
"""Number of budgets at which a curve is drawn, evenly spaced on a logarithmic axis."""
COSTS: dict[Literal["tokens", "steps", "seconds"], str] = {
    "tokens": "generated tokens a task",
    "steps": "environment steps a task",
    "seconds": "seconds of search a task",
}
"""The kinds of cost of a search, each with the label of its axis."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of a search after one of its simulations."""

    spent: Spent
    found: bool
    """Whether the ends that it had reached included a success."""
    taken: bool
    """Whether the end that it would have taken was a success."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The searches of a group of trees, such as those of one policy in one mode."""

    label: str
    searches: Sequence[Sequence[Moment]]
    """For each tree, the first moment, the last one, and those at which ``found`` or ``taken`` changed."""
    decides: bool
    """Whether ``taken`` is meaningful: the decision "leaf" ranked the ends, without their rewards."""


def moments(
    tree: Tree, likelihood_weight: float = 0.0, allowed: Callable[[Sequence[Edge]], bool] = lambda path: True
) -> list[Moment]:
    """The first and the last moment of a search, and those at which ``found`` or ``taken`` changed.

    The result is empty if the tree does not store the cost of each simulation, or if the reward of an end is unknown.

    Args:
        likelihood_weight: λ of the decision "leaf".
        allowed: whether a path may be taken, as in ``best_path``.
    """
    ends = {id(node): (path, node) for path, node in tree.walk() if path and node.ended and not node.unknown}
    if len(tree.spent) != len(tree.order) or any(_success(*end) is None for end in ends.values()):
        return []
    if not tree.order and not ends:  # the search broke off before its first simulation
        budget = tree.budget
        steps = budget.environment_steps + budget.imagined_steps
        return [Moment(Spent(budget.generated_tokens, steps, budget.seconds), found=False, taken=False)]
    changes: list[Moment] = []
    found = taken = False
    best: tuple[bool, float, float, int] | None = None
    for node, spent in zip(tree.order, tree.spent, strict=True):
        if node is not None and (end := ends.pop(id(node), None)) is not None:
            success = bool(_success(*end))
            found |= success
            if allowed(end[0]) and (best is None or end_rank(tree, *end, likelihood_weight) > best):
                best, taken = end_rank(tree, *end, likelihood_weight), success
        if not changes or (changes[-1].found, changes[-1].taken) != (found, taken):
            changes.append(Moment(spent, found, taken))
    found |= any(_success(*end) for end in ends.values())  # lookahead also reaches ends at which no simulation ends
    if changes and changes[-1] != (last := Moment(tree.spent[-1], found, taken)):
        changes.append(last)
    return changes


def _success(path: Sequence[Edge], node: Node) -> bool | None:
    """Whether an end is a success; None if its reward was withheld and not stored later (``Node.paid``)."""
    if not node.final:
        return False
    if node.paid is not None:
        return reaches(node.paid, 1.0)
    if any(edge.outcome is None for edge in path):
        return None
    return reaches(outcome(path), 1.0)


def anytime_charts(
    name: str,
    title: str,
    groups: Sequence[Progress],
    others: Mapping[str, Sequence[Line]] | None = None,
    *,
    coverage: bool = True,
) -> list[Chart]:
    """One figure of success for each kind of cost that the searches had.

    Args:
        name: prefix of the file names.
        title: prefix of the titles, such as "Success by".
        others: for each kind of cost, lines to draw beside the curves.
        coverage: whether to draw the share that was found (dashed) beside the share that would have been taken.
    """
    charts: list[Chart] = []
    for cost, axis in COSTS.items():
        lines = [line for index, group in enumerate(groups) for line in _lines(group, cost, index)]
        if not coverage:
            lines = [line for line in lines if not line.dashed]
        beside = [line for line in (others or {}).get(cost, ()) if line.points[0][0] > 0]
        if lines:
            chart = Chart(file_name(name, cost), f"{title} {cost}", axis, "", [*lines, *beside], log=True, share=True)
            charts.append(chart)
    return charts


def _lines(group: Progress, cost: Literal["tokens", "steps", "seconds"], colour: int) -> list[Line]:
    searches = [search for search in group.searches if search]
    costs_by_search = [[getattr(moment.spent, cost) for moment in search] for search in searches]
    positive = [each for costs in costs_by_search for each in costs if each > 0]
    if not positive:
        return []
    low, high = min(positive), max(positive)
    budgets = [low * (high / low) ** (index / (_BUDGETS - 1)) for index in range(_BUDGETS)] if high > low else [low]

    def line(kind: Literal["found", "taken"], label: str, *, dashed: bool) -> Line:
        points, band = list[tuple[float, float]](), list[tuple[float, float]]()
        for budget in budgets:
            budget *= 1 + 1e-9  # the last budget may be below the greatest cost, by rounding of the power
            count = sum(
                getattr(search[reached - 1], kind)
                for search, costs in zip(searches, costs_by_search, strict=True)
                if (reached := bisect_right(costs, budget))
            )
            points.append((float(f"{budget:.5g}"), count / len(searches)))
            band.append(wilson_interval(count, len(searches)))
        return Line(label, points, band, colour=colour, dashed=dashed)

    if not group.decides:
        return [line("found", group.label, dashed=False)]
    return [
        line("taken", f"{group.label}, taken", dashed=False),
        line("found", f"{group.label}, found", dashed=True),
    ]

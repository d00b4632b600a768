"""TreeRL (Hou et al. 2025): A = ([V(s) - V(root)] + [V(s) - V(parent)]) / sqrt(L(s)) for the edge that leads to s.

V(s) is the mean return of the leaves below s, and L(s) their number. The roots of all trees of a task are one state, so
they share one V(root).
"""

from collections import Counter
from collections.abc import Sequence
from math import sqrt
from statistics import fmean

from treeagent.search.node import Tree
from treeagent.views.advantages.common import per_edge, trajectory_returns


def treerl_advantages(trees: Sequence[Tree]) -> dict[int, float]:
    """A in reward units by ``id`` of the edge."""
    paths, returns = trajectory_returns(trees)
    values = per_edge(paths, returns)
    leaves = Counter(id(edge) for path in paths for edge in path)
    root = fmean(returns) if returns else 0.0
    scored: dict[int, float] = {}
    for path in paths:
        parent = root
        for edge in path:
            value = values[id(edge)]
            scored[id(edge)] = (value - root + value - parent) / sqrt(leaves[id(edge)])
            parent = value
    return scored

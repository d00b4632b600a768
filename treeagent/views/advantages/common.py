"""Shared by the kinds of advantages: the trajectories of trees, the scaling within a group, and averages over edges."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Literal

from treeagent.search.node import Edge, Tree, path_return

Path = tuple[Edge, ...]
Scale = Literal["std", "none"]
TINY = 1e-9
"""Differences up to this size count as rounding errors: the mean of equal numbers may differ from them in its last
bits."""


def trajectories(tree: Tree) -> list[Path]:
    """The tried paths from the root to a node below which nothing was tried, in the order of the tree."""
    return [
        path
        for path, node in tree.walk()
        if path and path[-1].visits and not any(edge.visits and edge.child is not None for edge in node.edges)
    ]


def trajectory_returns(trees: Sequence[Tree]) -> tuple[list[Path], list[float]]:
    """Every trajectory of the trees, and its return R(τ) in reward units, with V(s) added unless its end is known."""
    paths = [(tree, path) for tree in trees for path in trajectories(tree)]
    return [path for _, path in paths], [path_return(path, tree.discount) for tree, path in paths]


def relative(returns: Sequence[float], scale: Scale = "std") -> list[float]:
    """(R - mean) / std over a group, where std is the sample standard deviation. With ``scale`` "none" it is R - mean.
    0 in a group of one, or if all returns are equal."""
    spread = stdev(returns) if len(returns) > 1 else 0.0
    if spread <= TINY:
        return [0.0] * len(returns)
    mean, unit = fmean(returns), spread if scale == "std" else 1.0
    return [(each - mean) / unit for each in returns]


def per_edge(paths: Sequence[Path], values: Sequence[float]) -> dict[int, float]:
    """Assign one number per trajectory to all its edges, averaged as in ``average``."""
    return average(paths, [[each] * len(path) for path, each in zip(paths, values, strict=True)])


def average(paths: Sequence[Path], values: Sequence[Sequence[float]]) -> dict[int, float]:
    """By ``id`` of the edge, the mean of the numbers that the trajectories through it assign to it. ``values`` has one
    number for each step of each trajectory."""
    sums: defaultdict[int, float] = defaultdict(float)
    counts: Counter[int] = Counter()
    for path, along in zip(paths, values, strict=True):
        for edge, each in zip(path, along, strict=True):
            sums[id(edge)] += each
            counts[id(edge)] += 1
    return {edge: total / counts[edge] for edge, total in sums.items()}

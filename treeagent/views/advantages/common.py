"""What the kinds of advantages share: the trajectories of trees, the scaling of a group, and averages over edges."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Literal

from treeagent.search.node import Edge, Node, Tree, path_return

Path = tuple[Edge, ...]
Scale = Literal["std", "none"]
TINY = 1e-9
"""Differences up to this size are rounding errors: the mean of equal numbers may differ from them in its last bits."""


def trajectories(tree: Tree) -> list[Path]:
    """The tried paths from the root to a node below which nothing was tried, in the order of the tree."""
    return [path for path, node in tree.walk() if path and path[-1].visits and not any(map(_tried, node.edges))]


def _tried(edge: Edge) -> bool:
    return edge.visits > 0 and edge.child is not None


def outcomes(trees: Sequence[Tree]) -> tuple[list[Path], list[float]]:
    """Every trajectory of the trees, and its return R(τ) in reward units, closed with V(s) unless its end is known."""
    paths = [(tree, path) for tree in trees for path in trajectories(tree)]
    return [path for _, path in paths], [path_return(path, tree.discount) for tree, path in paths]


def states(tree: Tree, path: Path) -> list[Node]:
    """The state at which each step of a path was taken."""
    return [tree.root, *(edge.child for edge in path[:-1] if edge.child is not None)]


def relative(returns: Sequence[float], scale: Scale = "std") -> list[float]:
    """(R - mean) / std over a group, std being the sample's; undivided for "none", 0 in a group of one or of equals."""
    spread = stdev(returns) if len(returns) > 1 else 0.0
    if spread <= TINY:
        return [0.0] * len(returns)
    mean, unit = fmean(returns), spread if scale == "std" else 1.0
    return [(each - mean) / unit for each in returns]


def per_edge(paths: Sequence[Path], given: Sequence[float]) -> dict[int, float]:
    """One number a trajectory, given to all its edges, as ``average`` does."""
    return average(paths, [[each] * len(path) for path, each in zip(paths, given, strict=True)])


def average(paths: Sequence[Path], given: Sequence[Sequence[float]]) -> dict[int, float]:
    """By ``id`` of the edge, the mean of the numbers that the trajectories through it give it, one a step of each
    trajectory. Every trajectory counts once: the papers' groups are of sampled trajectories."""
    sums: defaultdict[int, float] = defaultdict(float)
    counts: Counter[int] = Counter()
    for path, along in zip(paths, given, strict=True):
        for edge, each in zip(path, along, strict=True):
            sums[id(edge)] += each
            counts[id(edge)] += 1
    return {edge: total / counts[edge] for edge, total in sums.items()}

"""Metrics of the trees that a policy searched: success, spread of returns, entropy, malformed and repeated steps."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from treeagent.search.node import Edge, Tree, finished_paths, path_return, solved
from treeagent.types import Task

Figures = Mapping[str, float]
_FIGURES = ("success", "reward", "reward_std", "entropy", "invalid", "repetition", "steps", "failed", "restarts")
_GRAM = 3
"""Length in tokens of the sequences that are checked for repetition."""


def tree_figures(trees: Iterable[Tree]) -> dict[str, float]:
    """Metrics of a policy, computed from its trees; empty if there are no trees.

    ``success``: share of tasks for which a finished path returned 1. ``reward``: mean return of finished paths.
    ``reward_std``: standard deviation of the returns within a tree, averaged over trees. ``entropy``: mean -log μ of a
    sampled token, in nats. ``invalid``: share of steps that were malformed or refused. ``repetition``: ``repetition``
    of finished paths. ``steps``: mean number of steps on a finished path. ``failed``: share of trees that broke off
    with an error. ``restarts``: share of states at which the prompt starts anew.
    """
    sums = defaultdict[str, float](float)
    counts = Counter[str]()

    def count(name: str, value: float) -> None:
        sums[name] += value
        counts[name] += 1

    tokens = 0
    for tree in trees:
        returns: list[float] = []
        for path in finished_paths(tree):
            returns.append(path_return(path, tree.discount))
            count("reward", returns[-1])
            count("repetition", repetition(path))
            count("steps", sum(not edge.thought for edge in path))
        count("success", solved(tree))
        count("failed", bool(tree.error))
        if returns:
            count("reward_std", statistics.pstdev(returns))
        for node in tree.nodes():
            count("restarts", bool(node.left_out))
            for edge in node.edges:
                tokens += len(edge.action.token_ids) - len(edge.action.forced)
                sums["entropy"] -= edge.logprob
                if edge.child is not None and not edge.thought:
                    count("invalid", edge.child.invalid)
    if not counts:
        return {}
    counts["entropy"] = tokens
    return {name: sums[name] / max(counts[name], 1) for name in _FIGURES}


def repetition(path: Sequence[Edge]) -> float:
    """Share of the agent's three-token sequences that occurred before on the path, within one action or another."""
    seen: set[tuple[int, ...]] = set()
    total = repeated = 0
    for edge in path:
        ids = edge.action.token_ids
        grams = [ids[start : start + _GRAM] for start in range(len(ids) - _GRAM + 1)]
        total += len(grams)
        for gram in grams:
            repeated += gram in seen
            seen.add(gram)
    return repeated / total if total else 0.0


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def return_spread(tree: Tree) -> float:
    """Standard deviation of the returns of finished paths; 0 if all are equal."""
    returns = [path_return(path, tree.discount) for path in finished_paths(tree)]
    return statistics.pstdev(returns) if returns else 0.0


def task_groups(trees: Sequence[Tree]) -> list[list[int]]:
    """The indices of the trees of each task, in the order of its first tree. Different tasks may share an id, such as
    tasks of one environment under other options."""
    groups: list[tuple[Task, list[int]]] = []
    for index, tree in enumerate(trees):
        task = tree.task
        for other, group in groups:
            if (other.id, other.seed, other.data) == (task.id, task.seed, task.data):
                group.append(index)
                break
        else:
            groups.append((task, [index]))
    return [group for _, group in groups]

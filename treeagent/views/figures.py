"""Metrics of the trees that a policy searched: success, spread of returns, entropy, malformed and repeated steps."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from treeagent.search.node import Edge, Tree, finished_paths, path_return, solved
from treeagent.types import Task

Figures = Mapping[str, float]
_FIGURES = (
    *("success", "reward", "reward_std", "entropy", "invalid", "repetition", "steps", "failed"),
    "restarts",
)
_GRAM = 3
"""Length in tokens of the sequences that are checked for repetition."""


def tree_figures(trees: Iterable[Tree]) -> dict[str, float]:
    """Metrics of a policy, computed from its trees; empty if there are no trees.

    ``success``: share of tasks for which a finished path returned 1. ``reward``: mean return of finished paths.
    ``reward_std``: standard deviation of the returns within a tree, averaged over trees. ``entropy``: mean -log μ of a
    sampled token, in nats, as an estimate of the policy's entropy. ``invalid``: share of steps that were malformed or
    refused. ``repetition``: share of an agent's three-token sequences that it produced before on the same path.
    ``steps``: mean number of steps on a finished path. ``failed``: share of trees that broke off with an error.
    ``restarts``: share of states at which old observations were left out, so that the prompt starts anew. A thought
    with a node of its own is half a step, and counts with its action.
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


def same_task(one: Task, other: Task) -> bool:
    """Whether the ids, seeds and data of two tasks are equal. Different tasks may share an id, such as tasks of one
    environment under other options, or tasks of two stages of a curriculum."""
    return (one.id, one.seed, one.data) == (other.id, other.seed, other.data)


def task_groups(trees: Sequence[Tree]) -> list[list[int]]:
    """The indices of the trees of each task (``same_task``), in the order of its first tree."""
    groups_by_id: dict[str, list[list[int]]] = {}
    for index, tree in enumerate(trees):
        groups = groups_by_id.setdefault(tree.task.id, [])
        for group in groups:
            if same_task(trees[group[0]].task, tree.task):
                group.append(index)
                break
        else:
            groups.append([index])
    return sorted(group for groups in groups_by_id.values() for group in groups)

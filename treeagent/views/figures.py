"""Figures of the trees that a policy searched: success, spread of returns, entropy, malformed and repeated steps."""

import statistics
from collections.abc import Mapping, Sequence

from treeagent.envs.shield import FORBIDDEN
from treeagent.search.node import Edge, Node, Tree, finished_paths, path_return, solved

Figures = Mapping[str, float]
_GRAM = 3
"""Tokens that count as a repetition when an agent says them again."""


def tree_figures(trees: Sequence[Tree]) -> dict[str, float]:
    """What a policy's trees show of it; empty for no trees.

    ``success``: share of tasks for which a finished path returned 1. ``reward``: mean return of finished paths.
    ``reward_std``: their standard deviation within a tree, mean over trees. ``entropy``: mean -log μ of a sampled
    token, in nats, an estimate of the policy's. ``invalid``: share of steps malformed or refused. ``forbidden``: share
    of steps that a shield refused. ``repetition``: share of an agent's three-token sequences that it said before on the
    same path. ``process``: mean process reward of a finished path. ``steps``: its mean number of steps. ``failed``:
    share of trees that broke off with an error. ``restarts``: share of states at which old observations were left out,
    so that the prompt starts anew.
    """
    if not trees:
        return {}
    ends = [[(path, path_return(path, tree.discount)) for path in finished_paths(tree)] for tree in trees]
    paths = [path for found in ends for path, _ in found]
    returns = [[value for _, value in found] for found in ends]
    drawn = [edge for tree in trees for node in tree.nodes() for edge in node.edges]
    stepped = [edge.child for edge in drawn if edge.child is not None]
    tokens = sum(len(edge.action.token_ids) - len(edge.action.forced) for edge in drawn)
    return {
        "success": mean([float(solved(tree)) for tree in trees]),
        "reward": mean([value for values in returns for value in values]),
        "reward_std": mean([statistics.pstdev(values) for values in returns if values]),
        "entropy": -sum(edge.action.logprob for edge in drawn) / max(tokens, 1),
        "invalid": mean([float(node.invalid) for node in stepped]),
        "forbidden": mean([float(_forbidden(node)) for node in stepped]),
        "repetition": mean([repetition(path) for path in paths]),
        "process": mean([sum(edge.process for edge in path) for path in paths]),
        "steps": mean([float(len(path)) for path in paths]),
        "failed": mean([float(bool(tree.error)) for tree in trees]),
        "restarts": mean([float(bool(node.left_out)) for tree in trees for node in tree.nodes()]),
    }


def repetition(path: Sequence[Edge]) -> float:
    """Share of the agent's three-token sequences that occurred before on the path, within one action or another."""
    seen: set[tuple[int, ...]] = set()
    said = again = 0
    for edge in path:
        ids = edge.action.token_ids
        grams = [ids[start : start + _GRAM] for start in range(len(ids) - _GRAM + 1)]
        said += len(grams)
        for gram in grams:
            again += gram in seen
            seen.add(gram)
    return again / said if said else 0.0


def _forbidden(node: Node) -> bool:
    return node.invalid and node.state.messages[-1].content.startswith(FORBIDDEN)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0

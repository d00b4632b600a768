"""From a grown tree to the actions to take."""

from collections.abc import Sequence
from typing import Literal

from treeagent.search.config import SearchConfig
from treeagent.search.gumbel import best_root_edge, improved_policy, known
from treeagent.search.node import Edge, Node, Tree, path_logprob, path_return

Decision = Literal["visits", "value", "leaf", "gumbel"]


def best_path(
    tree: Tree, decision: Decision = "leaf", config: SearchConfig | None = None, likelihood_weight: float = 0.0
) -> list[Edge]:
    """The expanded edges to take from the root.

    ``visits`` follows the most visited child, ``value`` the one of highest Q, ``leaf`` goes to the ended node of
    highest G + λ log π(path) (in a deterministic dynamics the return G is already in hand; where it is withheld, V
    stands for it), of equals to the likeliest and then the nearest; to one that a limit cut off only where the task is
    over at none; or it falls back to ``visits`` where no simulation reached an end of known worth. ``gumbel`` takes
    what a Gumbel search under ``config`` has settled on at the root, and the action of highest improved policy below
    it. The path may stop at a node that has not ended: the caller plays on from there.

    Args:
        likelihood_weight: λ, reward units a nat. Of policies that may not stray from π by more than a bound on their
            KL divergence, π exp(V/λ) is the best (Korbak et al. 2022, equation 3); this is its mode. It guards against
            a value that believes what the agent says on a path which the agent itself finds unlikely.
    """
    if decision == "leaf":
        ends = [(list(path), node) for path, node in tree.walk() if path and node.ended and not node.unknown]
        # What V hopes for beyond a limit nobody collects.
        ended = [path for path, node in ends if node.terminated] or [path for path, _ in ends]
        if ended:

            def rank(path: Sequence[Edge]) -> tuple[float, float, int]:
                logprob = path_logprob(path)
                return path_return(path, tree.discount) + likelihood_weight * logprob, logprob, -len(path)

            return max(ended, key=rank)
    path: list[Edge] = []
    node: Node | None = tree.root
    while node is not None and any(edge.visits and edge.child is not None for edge in node.edges):
        path.append(_choose(tree, node, decision, config or SearchConfig()))
        node = path[-1].child
    return path


def most_visited_path(tree: Tree) -> list[Edge]:
    """The most visited child at every step; where lookahead grew the tree, these are the steps that it took."""
    path: list[Edge] = []
    node: Node | None = tree.root
    while node is not None and any(edge.visits and edge.child is not None for edge in node.edges):
        path.append(max((edge for edge in node.edges if edge.child is not None), key=by_visits))
        node = path[-1].child
    return path


def by_visits(edge: Edge) -> tuple[float, float, float]:
    """Ties go to the higher Q, then to the higher prior."""
    return edge.visits, edge.value, edge.prior


def _choose(tree: Tree, node: Node, decision: Decision, config: SearchConfig) -> Edge:
    if decision == "gumbel" and node is tree.root:
        return best_root_edge(tree, config)
    tried = [edge for edge in node.edges if edge.visits and edge.child is not None]
    if decision == "gumbel":
        improved = {id(edge): share for edge, share in zip(node.edges, improved_policy(node, config), strict=True)}
        return max(tried, key=lambda edge: improved[id(edge)])
    if decision == "value":
        return max(tried, key=_by_value)
    most = max(edge.visits for edge in tried)
    # Search leaves a subtree in which nothing is left to find, however good it is: few visits say nothing there.
    return max((edge for edge in tried if edge.visits == most or known(edge)), key=_by_value)


def _by_value(edge: Edge) -> tuple[float, float, float]:
    return edge.value, edge.visits, edge.prior

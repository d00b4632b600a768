"""Chooses the actions to take from a finished search."""

from collections.abc import Callable, Sequence
from typing import Literal

from treeagent.search.gumbel import best_root_edge, improved_policy, is_explored
from treeagent.search.node import Edge, Node, Tree, mean_logprob, path_logprob, path_return, succeeds

Decision = Literal["visits", "value", "leaf", "gumbel"]
_WEIGHTS = (0.1, 0.0, 0.03, 0.3, 1.0)
"""The λ that ``best_weight`` chooses from. Ties go to the first, the default."""


def best_path(tree: Tree, decision: Decision = "leaf", likelihood_weight: float = 0.0) -> list[Edge]:
    """The expanded edges to take from the root. The path may stop at a node that has not ended.

    Args:
        decision: how to choose.
            "leaf" takes the end with the greatest G + λ ℓ (``end_rank``); without an end it works like "visits".
            "visits" follows at every step the child with the greatest Q among the most visited ones and those beyond
            which search has seen everything.
            "value" follows the child with the greatest Q.
            "gumbel" takes the action that a Gumbel search recommends at the root, without its noise, and below the root
            the likeliest action of the improved policy.
        likelihood_weight: λ, in reward units per nat. Among policies within a bound on their KL divergence from π,
            π exp(V/λ') is the best (Korbak et al. 2022, equation 3), and its mode has the greatest V + λ' log π. A path
            of T turns may diverge T times as far as one turn, so λ' is λ / T.
    """
    if decision == "leaf":
        ends = [(path, node) for path, node in tree.walk() if path and node.ended and not node.unknown]
        if ends:
            return list(max(ends, key=lambda end: end_rank(tree, end[0], end[1], likelihood_weight))[0])
    return _follow(tree, lambda node, edges: _choose(tree, node, edges, decision))


def end_rank(tree: Tree, path: Sequence[Edge], node: Node, likelihood_weight: float) -> tuple[bool, float, float, int]:
    """Sort key of the end ``node`` of ``path`` under the decision "leaf": ends at a limit come last; then G + λ ℓ,
    where ℓ is the ``mean_logprob`` of the path and V replaces a withheld reward; then the likelier, the nearer one."""
    total = path_return(path, tree.discount) + likelihood_weight * mean_logprob(path)
    return node.terminated, total, path_logprob(path), -len(path)


def best_weight(trees: Sequence[Tree], decision: Decision) -> float:
    """The λ with which ``best_path`` takes a success in the most of these trees, whose rewards were told afterwards."""

    def taken(weight: float) -> int:
        paths = (best_path(tree, decision, weight) for tree in trees)
        return sum(succeeds(path) for path in paths if path)  # a search that failed at once has no path

    return max(_WEIGHTS, key=taken)


def most_visited_path(tree: Tree) -> list[Edge]:
    """The most visited child at every step. In a tree grown by lookahead, these are the actions that it took."""
    return _follow(tree, lambda node, edges: max(edges, key=by_visits))


def _follow(tree: Tree, choose: Callable[[Node, Sequence[Edge]], Edge]) -> list[Edge]:
    """The path of chosen edges among those that were tried and lead to no earlier state."""
    path: list[Edge] = []
    node: Node | None = tree.root
    while node is not None:
        tried = [edge for edge in node.edges if edge.visits and edge.child is not None and not edge.child.repeat]
        if not tried:
            break
        path.append(choose(node, tried))
        node = path[-1].child
    return path


def by_visits(edge: Edge) -> tuple[float, float, float]:
    """Sort key of edges by visits. Ties go to the greater Q, then to the greater prior."""
    return edge.visits, edge.value, edge.prior


def _choose(tree: Tree, node: Node, tried: Sequence[Edge], decision: Decision) -> Edge:
    if decision == "gumbel" and node is tree.root:
        best = best_root_edge(tree, noise=False)
        if best in tried:
            return best
    if decision == "gumbel":
        improved = {id(edge): share for edge, share in zip(node.edges, improved_policy(node), strict=True)}
        return max(tried, key=lambda edge: improved[id(edge)])
    if decision == "value":
        return max(tried, key=_by_value)
    most = max(edge.visits for edge in tried)
    # Search leaves an exhausted subtree even if it is good, so few visits do not mean a low value there.
    return max((edge for edge in tried if edge.visits == most or is_explored(edge)), key=_by_value)


def _by_value(edge: Edge) -> tuple[float, float, float]:
    return edge.value, edge.visits, edge.prior

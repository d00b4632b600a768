"""From a grown tree to the actions to take."""

from typing import Literal

from treeagent.search.node import Edge, Node, Tree, path_return

Decision = Literal["visits", "value", "leaf"]


def best_path(tree: Tree, decision: Decision = "leaf") -> list[Edge]:
    """The expanded edges to take from the root.

    ``visits`` follows the most visited child, ``value`` the one of highest Q, ``leaf`` goes to the ended node of
    highest return (in a deterministic dynamics that return is already in hand; where it is withheld, V stands for it),
    or falls back to ``visits`` where no simulation reached an end. The path may stop at a node that has not ended: the
    caller plays on from there.
    """
    if decision == "leaf":
        ended = [list(path) for path, node in tree.walk() if path and node.ended]
        if ended:
            return max(ended, key=lambda path: path_return(path, tree.discount))
    path: list[Edge] = []
    node: Node | None = tree.root
    while node is not None:
        tried = [edge for edge in node.edges if edge.visits and edge.child is not None]
        if not tried:
            break
        path.append(max(tried, key=_rank[decision]))
        node = path[-1].child
    return path


def by_visits(edge: Edge) -> tuple[float, float, float]:
    """The order of ``visits``: ties go to the higher Q, then to the higher prior."""
    return edge.visits, edge.value, edge.prior


def _by_value(edge: Edge) -> tuple[float, float, float]:
    return edge.value, edge.visits, edge.prior


_rank = {"visits": by_visits, "leaf": by_visits, "value": _by_value}

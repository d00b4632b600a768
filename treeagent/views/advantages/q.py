"""Search advantages: A(s,a) = Q(s,a) - mean_b Q(s,b), over the siblings b tried at s."""

from collections.abc import Sequence
from statistics import fmean

from treeagent.search.node import Tree


def q_advantages(trees: Sequence[Tree], min_visits: int = 1) -> dict[int, float]:
    """A(s,a) in reward units by ``id`` of the edge. The advantages at a node sum to 0, as each sibling is one row of
    the update: weighted by visits, the few bad siblings would outweigh the good one. Edges with fewer than
    ``min_visits`` count neither as actions nor as siblings."""
    scored: dict[int, float] = {}
    for node in (node for tree in trees for node in tree.nodes()):
        tried = [edge for edge in node.edges if edge.visits >= min_visits]
        if len(tried) > 1:
            baseline = fmean(edge.value for edge in tried)
            scored.update({id(edge): edge.value - baseline for edge in tried})
    return scored

"""Search advantages: A(s,a) = Q(s,a) - Σ_b N(s,b) Q(s,b) / Σ_b N(s,b), over the siblings b tried at s."""

from collections.abc import Sequence

from treeagent.search.node import Tree


def q_advantages(trees: Sequence[Tree], min_visits: int = 1) -> dict[int, float]:
    """A(s,a) in reward units by ``id`` of the edge. Weighted by visits, the advantages at a node sum to 0. Edges with
    fewer than ``min_visits`` count neither as actions nor as siblings."""
    scored: dict[int, float] = {}
    for node in (node for tree in trees for node in tree.nodes()):
        tried = [edge for edge in node.edges if edge.visits >= min_visits]
        if len(tried) > 1:
            baseline = sum(edge.value_sum for edge in tried) / sum(edge.visits for edge in tried)
            scored.update({id(edge): edge.value - baseline for edge in tried})
    return scored

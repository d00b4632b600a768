"""How much each step mattered: the drop of Q where a step is replaced by its siblings.

D(s,a) = Q(s,a) - Σ_b N(s,b) Q(s,b) / Σ_b N(s,b), over the other actions b ≠ a that were tried at s. Unlike the
advantage of the kind "q" its baseline leaves the step itself out, so that a step that search preferred, and therefore
visited most, does not hide its own weight.
"""

from treeagent.search.node import Tree


def criticality(tree: Tree) -> dict[int, float]:
    """D(s,a) in reward units by ``id`` of the edge: what is lost, in the mean over the siblings' visits, if one of them
    is taken in place of the step. Negative where the siblings did better. Edges without a tried sibling, and those
    never tried, are left out.

    Args:
        tree: one searched tree.
    """
    drops: dict[int, float] = {}
    for node in tree.nodes():
        visits = node.visits
        total = sum(edge.value_sum for edge in node.edges)
        for edge in node.edges:
            if edge.visits and (others := visits - edge.visits):
                drops[id(edge)] = edge.value - (total - edge.value_sum) / others
    return drops

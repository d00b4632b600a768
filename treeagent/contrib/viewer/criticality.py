"""How much each step mattered: the drop in Q if a step is replaced by its siblings.

D(s,a) = Q(s,a) - Σ_b N(s,b) Q(s,b) / Σ_b N(s,b), over the other actions b ≠ a that were tried at s. Unlike in the
advantage of the kind "q", the baseline excludes the step itself. Search visits its preferred step most often, so a
baseline that included this step would hide how much it matters.
"""

from treeagent.search.node import Tree


def criticality(tree: Tree) -> dict[int, float]:
    """D(s,a) in reward units by ``id`` of the edge: the loss if a sibling is taken instead of the step, averaged over
    the siblings' visits. It is negative if the siblings did better. Edges that were never tried, or have no tried
    sibling, are left out.

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

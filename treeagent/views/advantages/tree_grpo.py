"""Tree-GRPO (Ji et al. 2025): A(τ) = A_intra(τ) + A_inter(τ), GRPO's advantage within the trajectory's own tree plus
the one over all trees of the task; each is (R(τ) - mean R) / std R of its group."""

from collections.abc import Sequence

from treeagent.search.node import Tree
from treeagent.views.advantages.common import outcomes, per_edge, relative


def tree_grpo_advantages(trees: Sequence[Tree]) -> dict[int, float]:
    """A(τ) by ``id`` of the edge; an edge that several trajectories share gets their mean."""
    paths, returns = outcomes(trees)
    intra = [each for tree in trees for each in relative(outcomes([tree])[1])]
    inter = relative(returns)
    return per_edge(paths, [own + group for own, group in zip(intra, inter, strict=True)])

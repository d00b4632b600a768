"""RLOO (Ahmadian et al. 2024, equation 8): A(τ_i) = R(τ_i) - Σ_{j≠i} R(τ_j) / (n - 1) over the n trajectories of one
task, which equals (n R(τ_i) - Σ_j R(τ_j)) / (n - 1)."""

from collections.abc import Sequence

from treeagent.search.node import Tree
from treeagent.views.advantages.common import per_edge, trajectory_returns


def rloo_advantages(trees: Sequence[Tree]) -> dict[int, float]:
    """A(τ) in reward units by ``id`` of the edge."""
    paths, returns = trajectory_returns(trees)
    total, count = sum(returns), len(returns)
    return per_edge(paths, [(count * each - total) / max(count - 1, 1) for each in returns])

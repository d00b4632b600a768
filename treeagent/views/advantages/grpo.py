"""GRPO (Shao et al. 2024, section 4.1.2): A(τ) = (R(τ) - mean R) / std R over the trajectories τ of one task.

Without the division it is Dr. GRPO (Liu et al. 2025): A(τ) = R(τ) - mean R.
"""

from collections.abc import Sequence

from treeagent.search.node import Tree
from treeagent.views.advantages.common import Scale, per_edge, relative, trajectory_returns


def grpo_advantages(trees: Sequence[Tree], scale: Scale = "std") -> dict[int, float]:
    """A(τ) by ``id`` of the edge; ``scale`` "none" leaves out the division."""
    paths, returns = trajectory_returns(trees)
    return per_edge(paths, relative(returns, scale))

"""Generalised advantage estimation (GAE, Schulman et al. 2016, equation 16), the advantages of PPO:
A_t = Σ_l (γλ)^l δ_{t+l} with δ_t = r_t + γ V(s_{t+1}) - V(s_t).

V is the value function's estimate of each state when the search reached it, and 0 after a known end. MCTS estimates
every state; best-of-N needs its option ``estimate_all`` for that.
"""

from collections.abc import Sequence

from treeagent.search.node import Tree
from treeagent.views.advantages.common import Path, average, trajectories


def gae_advantages(trees: Sequence[Tree], lambda_: float = 0.95) -> dict[int, float]:
    """A_t in reward units by ``id`` of the edge; ``lambda_`` is λ, from 0 to 1."""
    paths: list[Path] = []
    estimates: list[list[float]] = []
    for tree in trees:
        for path in trajectories(tree):
            advantage = 0.0
            along: list[float] = []
            for edge, node in zip(reversed(path), reversed(tree.states(path[:-1])), strict=True):
                assert edge.child is not None
                discount = edge.discount(tree.discount)
                delta = edge.leaf_return(tree.discount) - node.value
                advantage = delta + discount * lambda_ * advantage
                along.append(advantage)
            paths.append(path)
            estimates.append(along[::-1])
    return average(paths, estimates)

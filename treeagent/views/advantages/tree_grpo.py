"""Tree-GRPO (Ji et al. 2025): A(τ) = A_intra(τ) + A_inter(τ), the sum of GRPO's advantage within the trajectory's own
tree and GRPO's advantage over all trees of the task. Each is (R(τ) - mean R) / std R of its group.

The paper's trees correspond to the groups of chains that the search "random_expand" grows: an initial chain and its
branches. All groups of a task start at one root and are stored as one tree. A tree of any other search is one group.
"""

from collections import defaultdict
from collections.abc import Sequence

from treeagent.search.node import Tree
from treeagent.views.advantages.common import per_edge, relative, trajectories, trajectory_returns


def tree_grpo_advantages(trees: Sequence[Tree]) -> dict[int, float]:
    """A(τ) by ``id`` of the edge."""
    paths, returns = trajectory_returns(trees)
    total = relative(returns)
    groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    keys = [(number, path[0].group) for number, tree in enumerate(trees) for path in trajectories(tree)]
    for index, key in enumerate(keys):
        groups[key].append(index)
    for indices in groups.values():
        for index, intra in zip(indices, relative([returns[index] for index in indices]), strict=True):
            total[index] += intra
    return per_edge(paths, total)

"""GiGPO (Feng et al. 2025, equations 3 and 5 to 8): A = A_E + ω A_S with ω = 1, the weight in the paper's experiments.

A_E is GRPO's advantage of the whole episode. A_S is computed in the same way from the returns R_t = Σ_k γ^(k-t) r_k of
all steps that were taken at equal states (anchor states).
"""

from collections import defaultdict
from collections.abc import Sequence

from treeagent.search.node import Tree, path_return
from treeagent.views.advantages.common import average, relative, trajectories, trajectory_returns


def gigpo_advantages(trees: Sequence[Tree]) -> dict[int, float]:
    """A by ``id`` of the edge. A state without a key equals only itself. Unlike in the paper, an environment's key also
    includes the number of steps left, so the same situation at another time is another state."""
    paths, returns = trajectory_returns(trees)
    estimates = [[each] * len(path) for path, each in zip(paths, relative(returns), strict=True)]
    anchors: defaultdict[str | int, list[tuple[int, int, float]]] = defaultdict(list)
    episodes = ((tree, path) for tree in trees for path in trajectories(tree))
    for number, (tree, path) in enumerate(episodes):
        for index, node in enumerate(tree.states(path[:-1])):
            key = id(node) if node.state.key is None else node.state.key
            anchors[key].append((number, index, path_return(path[index:], tree.discount)))
    for steps in anchors.values():
        advantages = relative([rest for _, _, rest in steps])
        for (number, index, _), advantage in zip(steps, advantages, strict=True):
            estimates[number][index] += advantage
    return average(paths, estimates)

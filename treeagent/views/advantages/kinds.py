"""The core's kinds of advantages, one function each: A by ``id`` of the edge, from the trees of one task."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from math import sqrt
from statistics import fmean

from treeagent.search.node import Tree, path_return
from treeagent.views.advantages.common import (
    Path,
    Scale,
    average,
    per_edge,
    relative,
    trajectories,
    trajectory_returns,
)


def q_advantages(trees: Sequence[Tree], min_visits: int = 1) -> dict[int, float]:
    """Search advantages: A(s,a) = Q(s,a) - mean_b Q(s,b), over the siblings b tried at s, in reward units.

    The advantages at a node sum to 0, as each sibling is one row of the update: weighted by visits, the few bad
    siblings would outweigh the good one. Edges with fewer than ``min_visits`` count neither as actions nor as siblings.
    """
    scored: dict[int, float] = {}
    for node in (node for tree in trees for node in tree.nodes()):
        tried = [edge for edge in node.edges if edge.visits >= min_visits]
        if len(tried) > 1:
            baseline = fmean(edge.value for edge in tried)
            scored.update({id(edge): edge.value - baseline for edge in tried})
    return scored


def tree_grpo_advantages(trees: Sequence[Tree]) -> dict[int, float]:
    """Tree-GRPO (Ji et al. 2025): A(τ) = A_intra(τ) + A_inter(τ), the sum of GRPO's advantage within the trajectory's
    own tree and GRPO's advantage over all trees of the task. Each is (R(τ) - mean R) / std R of its group, and sums to
    0 over the trajectories of the group.

    The paper's trees correspond to the groups of chains that the search "random_expand" grows: an initial chain and its
    branches. All groups of a task start at one root and are stored as one tree. A tree of any other search is one
    group."""
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


def treerl_advantages(trees: Sequence[Tree]) -> dict[int, float]:
    """TreeRL (Hou et al. 2025): A = ([V(s) - V(root)] + [V(s) - V(parent)]) / sqrt(L(s)) for the edge that leads to s,
    in reward units. V(s) is the mean return of the leaves below s, and L(s) their number. The roots of all trees of a
    task are one state, so they share one V(root). No sum of these advantages is 0."""
    paths, returns = trajectory_returns(trees)
    values = per_edge(paths, returns)
    leaves = Counter(id(edge) for path in paths for edge in path)
    root = fmean(returns) if returns else 0.0
    scored: dict[int, float] = {}
    for path in paths:
        parent = root
        for edge in path:
            value = values[id(edge)]
            scored[id(edge)] = (value - root + value - parent) / sqrt(leaves[id(edge)])
            parent = value
    return scored


def gigpo_advantages(trees: Sequence[Tree]) -> dict[int, float]:
    """GiGPO (Feng et al. 2025, equations 3 and 5 to 8): A = A_E + ω A_S with ω = 1, the weight in the paper's
    experiments. A_E is GRPO's advantage of the whole episode. A_S is computed in the same way from the returns
    R_t = Σ_k γ^(k-t) r_k of all steps that were taken at equal states (anchor states). A_E sums to 0 over the episodes
    of a task, and A_S over the steps at a state.

    A state without a key equals only itself. Unlike in the paper, an environment's key also includes the number of
    steps left, so the same situation at another time is another state."""
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


def grpo_advantages(trees: Sequence[Tree], scale: Scale = "std") -> dict[int, float]:
    """GRPO (Shao et al. 2024, section 4.1.2): A(τ) = (R(τ) - mean R) / std R over the trajectories τ of one task,
    over which it sums to 0. With ``scale`` "none" it is Dr. GRPO (Liu et al. 2025): A(τ) = R(τ) - mean R."""
    paths, returns = trajectory_returns(trees)
    return per_edge(paths, relative(returns, scale))


def rloo_advantages(trees: Sequence[Tree]) -> dict[int, float]:
    """RLOO (Ahmadian et al. 2024, equation 8): A(τ_i) = R(τ_i) - Σ_{j≠i} R(τ_j) / (n - 1) over the n trajectories of
    one task, in reward units, which equals (n R(τ_i) - Σ_j R(τ_j)) / (n - 1). Over the trajectories it sums to 0."""
    paths, returns = trajectory_returns(trees)
    total, count = sum(returns), len(returns)
    return per_edge(paths, [(count * each - total) / max(count - 1, 1) for each in returns])


def gae_advantages(trees: Sequence[Tree], lambda_: float = 0.95) -> dict[int, float]:
    """Generalised advantage estimation (GAE, Schulman et al. 2016, equation 16), the advantages of PPO, in reward
    units: A_t = Σ_l (γλ)^l δ_{t+l} with δ_t = r_t + γ V(s_{t+1}) - V(s_t), and λ from 0 to 1. No sum of them is 0.

    V is the value function's estimate of each state when the search reached it, and 0 after a known end. MCTS estimates
    every state; best-of-N needs its option ``estimate_all`` for that."""
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

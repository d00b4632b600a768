"""Budgets of costs: their Lagrange multipliers, trees and advantages under costs, and plans that keep the budgets.

For the return G of a policy's episodes and their cost C, the problem max E[G] with E[C] <= d has the Lagrangian E[G] -
λ (E[C] - d) (Altman 1999). The multiplier takes gradient steps, λ <- max(0, λ + η (mean cost - d)), and actions are
compared by (Q_r - λ Q_c) / (1 + λ), which keeps the same scale as λ grows (Ray et al. 2019).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from treeagent.contrib.judging.components import components_of, path_sums
from treeagent.contrib.judging.reweigh import with_rewards
from treeagent.search.node import Edge, Tree, finished_paths


def next_multiplier(multiplier: float, rate: float, mean_cost: float, budget: float) -> float:
    """The multiplier after one gradient step: λ <- max(0, λ + η (mean cost - d))."""
    return max(0.0, multiplier + rate * (mean_cost - budget))


def mean_costs(trees: Iterable[Tree], names: Sequence[str]) -> dict[str, float]:
    """The mean over finished paths of the sum of each component; 0 if no path finished."""
    count, sums = 0, dict.fromkeys(names, 0.0)
    for path in chain.from_iterable(map(finished_paths, trees)):
        count += 1
        found = path_sums(path)
        for name in names:
            sums[name] += found.get(name, 0.0)
    return {name: total / max(count, 1) for name, total in sums.items()}


def cost_tree(tree: Tree, name: str) -> Tree:
    """A copy of a tree with the costs of one name as rewards, W as the sums of these costs, and V(s) as the mean cost
    of the visits beyond s. The cost beyond a leaf counts as 0, because nothing estimates it."""
    copy = with_rewards(tree, lambda edge: components_of(edge).get(name, 0.0), blank=True)
    for node in copy.nodes():
        if visits := sum(edge.visits for edge in node.edges):
            node.value = sum(edge.value_sum for edge in node.edges) / visits
    return copy


def penalised(tree: Tree, multipliers: Mapping[str, float]) -> Tree:
    """A copy of a tree in which each reward, W and V is replaced by (x_r - Σ_k λ_k x_k) / (1 + Σ_k λ_k)."""
    scale = 1.0 + sum(multipliers.values())
    costs = [(weight, cost_tree(tree, name)) for name, weight in multipliers.items()]
    copy = with_rewards(tree, lambda edge: edge.reward)
    for node in copy.nodes():
        node.value /= scale
        for edge in node.edges:
            edge.value_sum /= scale
            if edge.reward is not None:
                edge.reward /= scale
    for weight, cost in costs:
        for node, paid in zip(copy.nodes(), cost.nodes(), strict=True):
            for edge, price in zip(node.edges, paid.edges, strict=True):
                edge.value_sum -= weight * price.value_sum / scale
                if edge.reward is not None and edge.child is not None:
                    edge.reward -= weight * (price.reward or 0.0) / scale
    return copy


def path_costs(path: Sequence[Edge], budgets: Mapping[str, float]) -> dict[str, float]:
    """The cost of a path, for each name that has a budget."""
    sums = path_sums(path)
    return {name: sums.get(name, 0.0) for name in budgets}


def within_budgets(
    costs: Mapping[str, float], budgets: Mapping[str, float], before: Mapping[str, float] | None = None
) -> bool:
    """Whether costs, added to those ``before``, keep every budget, up to rounding."""
    already = before or {}
    return all(costs.get(name, 0.0) + already.get(name, 0.0) <= budget + 1e-9 for name, budget in budgets.items())

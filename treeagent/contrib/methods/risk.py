"""Chooses a plan in a stochastic environment: plans are executed again, and ranked by the lower tail of their returns.

A tree steps through each edge once, so the return of a path is a single sample. The best of many such paths is often
only a lucky one. No statistic of the tree shows how a path ends at other times, because returns below an edge also
differ when search tries other actions there. Each plan is therefore measured by itself: its actions are taken again
from the root, each time with other random outcomes.
"""

import asyncio
import math
from collections.abc import Sequence

from treeagent.search.growth import Growth, estimate_nodes, take_step
from treeagent.search.node import Edge, Node, Tree, mean_logprob, path_return
from treeagent.types import Dynamics, Value

Plan = Sequence[Edge]


def cvar(returns: Sequence[float], level: float) -> float:
    """The conditional value at risk of a return G: the mean of the worst fraction ``level`` of its distribution,
    CVaR_α(G) = max_η {η - E[max(η - G, 0)] / α} (Rockafellar and Uryasev 2000, theorem 1, for a return in place of a
    loss; Chow et al. 2015 plan by it).

    If α n is not an integer, the last of the worst returns is weighted by the remaining fraction.

    Args:
        returns: equally likely values of G, at least one.
        level: α in (0, 1]; 1 gives the mean.
    """
    left, total = level * len(returns), 0.0
    for value in sorted(returns):
        weight = min(left, 1.0)
        if weight <= 0:
            break
        total, left = total + weight * value, left - weight
    return total / (level * len(returns))


async def safest(
    dynamics: Dynamics,
    value: Value | None,
    trees: Sequence[Tree],
    plans: Sequence[Sequence[Plan]],
    replays: int,
    level: float,
    likelihood_weight: float = 0.0,
    step_seconds: float | None = None,
) -> list[Plan]:
    """For each tree, the plan with the greatest CVaR_α(G) + λ ℓ over its replays, where ℓ is its ``mean_logprob``. Ties
    go to the first; the result is empty for a tree without plans.

    The steps of replays count in the trees' budgets. A replay that the environment breaks off, or whose end no request
    could estimate, is left out, and its reason becomes the tree's error.

    Args:
        dynamics: what the trees grew on. It is stepped again from their roots, with other random outcomes each time.
        value: estimates V(s) at the end of a replay, if the reward is withheld or the task goes on; None uses 0.
        plans: the plans of each tree, in order of preference.
        replays: how often each plan is replayed.
        level: α of ``cvar``.
        likelihood_weight: λ, in reward units per nat.
    """

    async def rank(tree: Tree, plan: Plan) -> float:
        # Not in parallel: the random outcome of a step depends on how often its tree has stepped from there before.
        tried = [await _replay(dynamics, tree, plan, step_seconds) for _ in range(replays)]
        unbroken = [(growth, path) for growth, path in tried if not growth.tree.error]
        await estimate_nodes(value, unbroken)
        for growth, _ in tried:
            tree.budget.add(growth.tree.budget)
            tree.error = tree.error or growth.tree.error or growth.failure
        returns = [path_return(path, tree.discount) for growth, path in unbroken if not growth.failure]
        return (cvar(returns, level) if returns else -math.inf) + likelihood_weight * mean_logprob(plan)

    async def choose(tree: Tree, candidates: Sequence[Plan]) -> Plan:
        # Plan by plan, so that the snapshots of one plan's replays are freed before the next plan starts.
        ranks = [await rank(tree, plan) for plan in candidates]
        return candidates[ranks.index(max(ranks))] if ranks else []

    return await asyncio.gather(*map(choose, trees, plans))


async def _replay(dynamics: Dynamics, tree: Tree, plan: Plan, step_seconds: float | None) -> tuple[Growth, list[Edge]]:
    """A tree of the plan's actions alone, and its path. It stops early if the task ends or the environment fails."""
    growth, path = Growth(Tree(tree.task, tree.seed, Node(tree.root.state), discount=tree.discount)), list[Edge]()
    for edge in plan:
        path.append(Edge(edge.action, prior=1.0))
        await take_step(dynamics, growth, path, step_seconds)
        child = path[-1].child
        if child is None or child.ended:
            break
    return growth, path

"""The choice of a plan in a stochastic environment: plans are tried again, and ranked by the tail of their returns.

A tree steps through each edge once, so that the return of a path is one sample. The best of many such paths is often
one that was lucky, and no statistic of the tree tells how it ends at other times: returns below an edge also differ
because search tries other actions there. So each plan is measured by itself. Its actions are taken again from the root,
each time with other random outcomes.
"""

import asyncio
import math
from collections.abc import Sequence

from treeagent.search.growth import Growth, end, estimate_nodes, take_step
from treeagent.search.node import Edge, Node, Tree, path_logprob, path_return
from treeagent.types import Dynamics, Value

Plan = Sequence[Edge]


def cvar(returns: Sequence[float], level: float) -> float:
    """The conditional value at risk of a return G: the mean of the worst ``level`` of its distribution,
    CVaR_α(G) = max_η {η - E[max(η - G, 0)] / α} (Rockafellar and Uryasev 2000, theorem 1, for a return in place of a
    loss; Chow et al. 2015 plan by it).

    Where α n is no whole number, the last of the worst returns counts by the part of it that is left.

    Args:
        returns: equally likely values of G, at least one.
        level: α in (0, 1]; 1 is the mean.
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
    """The plan of each tree with the greatest CVaR_α(G) + λ log π over its replays, the first of equals; empty for a
    tree without plans.

    The steps of replays count in the trees' budgets. A replay that the environment breaks off is left out, and its
    reason is the tree's error.

    Args:
        dynamics: what the trees grew on. It is stepped from their roots again, with other random outcomes each time.
        value: V(s) at the end of a replay, where the reward is withheld or the task goes on; None takes 0.
        plans: of each tree, in order of preference.
        replays: how often each plan is tried.
        level: α of ``cvar``.
        likelihood_weight: λ, in reward units a nat.
    """

    async def rank(tree: Tree, plan: Plan) -> float:
        # One after the other: the random outcome of a step depends on how often its tree has stepped from there before.
        tried = [await _replay(dynamics, tree, plan, step_seconds) for _ in range(replays)]
        whole = [(growth, path) for growth, path in tried if not growth.tree.error]
        await estimate_nodes(value, [(growth, end(growth, path)) for growth, path in whole])
        for growth, _ in tried:
            tree.budget.add(growth.tree.budget)
            tree.error = tree.error or growth.tree.error
        returns = [path_return(path, tree.discount) for _, path in whole]
        return (cvar(returns, level) if returns else -math.inf) + likelihood_weight * path_logprob(plan)

    async def choose(tree: Tree, wanted: Sequence[Plan]) -> Plan:
        # Plan by plan, so that the snapshots of a plan's replays are free before the next one's.
        ranks = [await rank(tree, plan) for plan in wanted]
        return wanted[ranks.index(max(ranks))] if ranks else []

    return await asyncio.gather(*map(choose, trees, plans))


async def _replay(dynamics: Dynamics, tree: Tree, plan: Plan, step_seconds: float | None) -> tuple[Growth, list[Edge]]:
    """A tree of the plan's actions alone, as far as the task went on or the environment answered, and its path."""
    growth, path = Growth(Tree(tree.task, tree.seed, Node(tree.root.state), discount=tree.discount)), list[Edge]()
    for edge in plan:
        path.append(Edge(edge.action, prior=1.0))
        await take_step(dynamics, growth, path, step_seconds)
        child = path[-1].child
        if child is None or child.ended:
            break
    return growth, path

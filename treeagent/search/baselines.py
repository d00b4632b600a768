"""Chains without a tree policy: greedy, sampling and best-of-N, as trees with the same budget accounting.

Greedy is ``count = 1`` under a policy of temperature 0; best-of-N is ``count = N`` and the best leaf.
"""

import asyncio
import time
from collections.abc import Sequence

from treeagent.search.growth import Growth, backup, end, estimate_nodes, plant, share_time, take_step
from treeagent.search.node import Edge, Tree
from treeagent.types import Dynamics, Policy, Task, Value


async def roll_out(
    policy: Policy,
    dynamics: Dynamics,
    tasks: Sequence[Task],
    seeds: Sequence[int],
    *,
    count: int = 1,
    value: Value | None = None,
) -> list[Tree]:
    """``count`` independent episodes of each task, as chains that share only the root: equal draws stay apart.

    Every edge has one visit and its chain's return as value. ``value`` judges each chain's last state.
    """
    started = time.perf_counter()
    growths = await plant(dynamics, tasks, seeds)
    sound = [growth for growth in growths if not growth.tree.error]
    chains: list[tuple[Growth, list[Edge]]] = [(growth, []) for growth in sound for _ in range(count)]
    fronts = chains
    while fronts:
        nodes = [end(growth, path) for growth, path in fronts]
        proposals = await policy.propose([node.state for node in nodes], 1, [g.next_seed() for g, _ in fronts])
        for (growth, path), node, proposal in zip(fronts, nodes, proposals, strict=True):
            node.context_ids = proposal.context_ids
            node.edges.append(Edge(proposal.actions[0], prior=1.0))
            path.append(node.edges[-1])
            growth.tree.budget.proposals += 1
            growth.tree.budget.generated_tokens += len(proposal.actions[0].token_ids)
        await asyncio.gather(*(take_step(dynamics, growth, path) for growth, path in fronts))
        fronts = [(g, path) for g, path in fronts if path[-1].child is not None and not path[-1].child.ended]
    whole = [(growth, path) for growth, path in chains if path[-1].child is not None]
    await estimate_nodes(value, [(growth, end(growth, path)) for growth, path in whole])
    for growth, path in whole:
        backup(path, growth)
    share_time(growths, started)
    return [growth.tree for growth in growths]

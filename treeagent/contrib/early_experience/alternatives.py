"""Other actions tried at the states of a demonstration."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from treeagent.envs.answers import contained
from treeagent.envs.base import Demonstrator
from treeagent.envs.dynamics import EnvDynamics
from treeagent.generators.turn import Grammar
from treeagent.pipeline.demonstrate import Stage, demonstration_path, play_on
from treeagent.pipeline.shots import player_action
from treeagent.search.growth import Growth, create_trees, describe, last_node, take_step
from treeagent.search.node import Edge, Tree
from treeagent.types import Task, derive_seed


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The players that try other actions at the states of a demonstration."""

    expert: Demonstrator
    """Draws one action at each state. It also plays every branch on to the end of the episode, so that the returns of
    branches differ only by the action that was tried."""
    erring: Demonstrator
    """Draws ``count`` actions at each state."""
    count: int = 2
    """Draws of ``erring`` at each state. Each is played to the end, so even a few multiply the environment steps."""


async def try_alternatives(stage: Stage, growth: Growth, alternatives: Alternatives, rng: random.Random) -> None:
    """Try other actions at every state of a demonstration and play each to the end. Equal calls are tried once."""
    demonstration = demonstration_path(growth.tree)
    for length in range(len(demonstration)):
        if growth.tree.error:
            return
        node = last_node(growth, demonstration[:length])
        players = [alternatives.expert, *[alternatives.erring] * alternatives.count]
        try:
            growth.tree.budget.environment_steps += stage.dynamics.move_to(node.state)
            with contained():
                choices = [player.act(rng) for player in players]
            turns = [player_action(turn, stage.grammar, stage.tools) for turn in choices]
        except Exception as failure:  # the episode boundary: a failed rollout is data
            growth.tree.error = describe(failure)
            return
        for action in turns:
            if growth.tree.error or any(edge.action.call == action.call for edge in node.edges):
                continue
            node.edges.append(Edge(action, prior=1.0))
            path = [*demonstration[:length], node.edges[-1]]
            await take_step(stage.dynamics, growth, path)
            if not growth.tree.error:
                await play_on(stage, growth, path, alternatives.expert, rng)
        for edge in node.edges:
            edge.prior = 1 / len(node.edges)


def demonstrate_branched(
    dynamics: EnvDynamics,
    demonstrator: Demonstrator,
    tasks: Sequence[Task],
    alternatives: Alternatives,
    *,
    seed: int,
    grammar: Grammar,
) -> Iterator[Tree]:
    """As ``pipeline.demonstrate.demonstrate``, with ``alternatives`` tried at every state of each demonstration. Each
    becomes a further edge of the node, after the demonstrator's own edge."""
    stage = Stage(dynamics, grammar, dynamics.env.tools())

    async def episode(task: Task, own_seed: int) -> Tree:
        (growth,) = await create_trees(dynamics, [task], [own_seed])
        await play_on(stage, growth, [], demonstrator, random.Random(own_seed))
        await try_alternatives(stage, growth, alternatives, random.Random(derive_seed(own_seed, "alternatives")))
        return growth.tree

    with asyncio.Runner() as runner:
        for task in tasks:
            yield runner.run(episode(task, derive_seed(seed, task.id)))

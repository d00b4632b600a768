"""Episodes of a scripted demonstrator, stored as trees like those of search. Each is a single chain."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from treeagent.agent.checkpoint import load_tokenizer
from treeagent.config import RunConfig
from treeagent.envs.answers import contained
from treeagent.envs.base import Demonstrator, ToolSpec
from treeagent.envs.dynamics import EnvDynamics
from treeagent.generators.chat import ChatFormat
from treeagent.generators.turn import Grammar, make_grammar
from treeagent.pipeline.build import env_dynamics, environment, tasks_at
from treeagent.pipeline.folder import RunError
from treeagent.pipeline.shots import player_action
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.searcher import Growth, backup, create_trees, describe, last_node, take_step
from treeagent.types import Message, Task, derive_seed


@dataclass(frozen=True, slots=True)
class Stage:
    """The environment in which turns are played, and the grammar and tools with which they are written."""

    dynamics: EnvDynamics
    grammar: Grammar
    tools: Sequence[ToolSpec]


def demonstrate(
    dynamics: EnvDynamics,
    demonstrator: Demonstrator,
    tasks: Sequence[Task],
    *,
    seed: int,
    grammar: Grammar,
) -> Iterator[Tree]:
    """Yield one demonstration of each task. Actions hold text without token ids; ``tokenise`` adds the ids."""
    stage = Stage(dynamics, grammar, dynamics.env.tools())
    with asyncio.Runner() as runner:
        for task in tasks:
            yield runner.run(_episode(stage, demonstrator, task, derive_seed(seed, task.id)))


async def _episode(stage: Stage, demonstrator: Demonstrator, task: Task, seed: int) -> Tree:
    (growth,) = await create_trees(stage.dynamics, [task], [seed])
    await play_on(stage, growth, [], demonstrator, random.Random(seed))
    return growth.tree


async def play_on(stage: Stage, growth: Growth, path: list[Edge], player: Demonstrator, rng: random.Random) -> None:
    """Play from the end of ``path``, where the environment stands, to the end of the episode."""
    if growth.tree.error:  # the reset failed
        return
    while not (node := last_node(growth, path)).ended:
        # The demonstrator acts on the environment's current state, which is the one that the last step led to.
        try:
            with contained():
                turn = player.act(rng)
            action = player_action(turn, stage.grammar, stage.tools)
        except Exception as failure:  # the episode boundary: a failed rollout is data
            growth.tree.error = describe(failure)
            return
        node.edges.append(Edge(action, prior=1.0))
        path.append(node.edges[-1])
        await take_step(stage.dynamics, growth, path)
        if growth.tree.error:
            return
    backup(growth, path)


def demonstration_path(tree: Tree) -> tuple[Edge, ...]:
    """The path of the demonstration itself: the first edge of each node. Alternatives are later edges."""
    path, node = list[Edge](), tree.root
    while node.edges and (child := node.edges[0].child) is not None:
        path.append(node.edges[0])
        node = child
    return tuple(path)


def tokenise(tree: Tree, chat: ChatFormat) -> Tree:
    """A copy of a demonstration with the token ids that a policy would read, as far as they fit its context."""
    opening = tree.root.state.messages
    root = Node(tree.root.state, context_ids=chat.context_ids(opening) if opening else ())  # no opening: reset failed
    waiting = [(tree.root, root)]
    while waiting:
        node, copy = waiting.pop()
        history = copy.state.messages
        for edge in node.edges:
            if (child := edge.child) is None:
                break
            action = replace(edge.action, token_ids=chat.encode_action(edge.action.text))
            turn = Message("assistant", action.text, action.token_ids)
            messages = (*history, turn, *child.state.messages[len(history) + 1 :])
            reading = chat.read(messages)
            if reading.error:  # later edges are alternatives to this one, so they are left out with it
                break
            below = replace(
                child,
                state=replace(child.state, messages=messages),
                context_ids=chat.added_ids(reading),
                left_out=reading.left_out,
                edges=[],
            )
            copy.edges.append(replace(edge, action=action, child=below))
            waiting.append((child, below))
    return Tree(tree.task, tree.seed, root, tree.budget, tree.error)


def demonstrations(config: RunConfig) -> Iterator[Tree]:
    """Yield episodes of the environment's own demonstrator, the same ones on every call."""
    env, settings = environment(config), config.warm_start
    demonstrator = env.demonstrator(settings.noise)
    if demonstrator is None:
        raise RunError(
            f"environment {config.environment.name!r} has no demonstrator to warm-start from: "
            "set policy.model to a model that can act already"
        )
    dynamics, grammar = env_dynamics(env, config, "demonstrate"), demonstration_grammar(config)
    for start in range(0, settings.episodes, settings.tasks):
        count = min(settings.tasks, settings.episodes - start)
        tasks = tasks_at(env, "train", range(count))
        yield from demonstrate(
            dynamics, demonstrator, tasks, seed=derive_seed(config.seed, "demonstrate", start), grammar=grammar
        )


def demonstration_grammar(config: RunConfig) -> Grammar:
    settings = config.policy
    template = "" if settings.model is None else str(load_tokenizer(settings.model).chat_template)
    return make_grammar(settings.format, template, environment(config).tools())

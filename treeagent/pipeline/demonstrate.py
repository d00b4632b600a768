"""Episodes of a scripted demonstrator, stored as trees like those of search. Each is a single chain."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from treeagent.agent.checkpoint import load_tokenizer
from treeagent.config import RunConfig
from treeagent.envs.answers import contained
from treeagent.envs.base import Demonstrator, Env
from treeagent.envs.dynamics import EnvDynamics
from treeagent.generators.chat import ChatFormat
from treeagent.generators.turn import Grammar, make_grammar
from treeagent.pipeline.build import env_dynamics, environment, tasks_at
from treeagent.pipeline.folder import RunError
from treeagent.pipeline.shots import player_action
from treeagent.search.node import Edge, Node, Path, Tree
from treeagent.search.searcher import backup, create_trees, describe, last_node, take_step
from treeagent.types import Message, Task, derive_seed


def demonstrate(
    dynamics: EnvDynamics, demonstrator: Demonstrator, tasks: Sequence[Task], *, seed: int, grammar: Grammar
) -> Iterator[Tree]:
    """Yield one demonstration of each task, in text; ``tokenise`` adds token ids."""
    with asyncio.Runner() as runner:
        for task in tasks:
            yield runner.run(_episode(dynamics, demonstrator, task, derive_seed(seed, task.id), grammar))


async def _episode(dynamics: EnvDynamics, player: Demonstrator, task: Task, seed: int, grammar: Grammar) -> Tree:
    (growth,) = await create_trees(dynamics, [task], [seed])
    tree, path, rng, tools = growth.tree, Path(), random.Random(seed), dynamics.env.tools()
    while not tree.error and not (node := last_node(growth, path)).ended:
        try:
            with contained():
                turn = player.act(rng)
            action = player_action(turn, grammar, tools)
        except Exception as failure:  # the episode boundary: a failed rollout is data
            tree.error = describe(failure)
            break
        node.edges.append(Edge(action, prior=1.0))
        path.append(node.edges[-1])
        await take_step(dynamics, growth, path)
    if not tree.error:
        backup(growth, path)
    return tree


def demonstration_path(tree: Tree) -> tuple[Edge, ...]:
    """The steps of a demonstration, without one that failed."""
    path, node = Path(), tree.root
    while node.edges and (child := node.edges[0].child) is not None:
        path.append(node.edges[0])
        node = child
    return tuple(path)


def tokenise(tree: Tree, chat: ChatFormat) -> Tree:
    """A copy of a demonstration with the token ids that a policy reads, as far as they fit its context."""
    opening = tree.root.state.messages
    root = node = Node(tree.root.state, context_ids=chat.context_ids(opening) if opening else ())  # else no reset
    for edge in demonstration_path(tree):
        assert edge.child is not None
        history, action = node.state.messages, replace(edge.action, token_ids=chat.encode_action(edge.action.text))
        turn = Message("assistant", action.text, action.token_ids)
        messages = (*history, turn, *edge.child.state.messages[len(history) + 1 :])
        reading = chat.read(messages)
        if reading.error:
            break
        state, ids = replace(edge.child.state, messages=messages), reading.added_ids
        below = replace(edge.child, state=state, context_ids=ids, left_out=reading.left_out, edges=[])
        node.edges.append(replace(edge, action=action, child=below))
        node = below
    return Tree(tree.task, tree.seed, root, tree.budget, tree.error)


def demonstrations(config: RunConfig) -> Iterator[Tree]:
    """Yield episodes of the environment's own demonstrator, the same on every call."""
    env, settings, model = environment(config), config.warm_start, config.policy.model
    demonstrator, dynamics = require_demonstrator(config, env), env_dynamics(env, config, "demonstrate")
    template = "" if model is None else str(load_tokenizer(model).chat_template)
    grammar = make_grammar(config.policy.format, template, env.tools())
    for start in range(0, settings.episodes, settings.tasks):
        tasks = tasks_at(env, "train", range(min(settings.tasks, settings.episodes - start)))
        seed = derive_seed(config.seed, "demonstrate", start)
        yield from demonstrate(dynamics, demonstrator, tasks, seed=seed, grammar=grammar)


def require_demonstrator(config: RunConfig, env: Env) -> Demonstrator:
    demonstrator = env.demonstrator(config.warm_start.noise)
    if demonstrator is None:
        raise RunError(
            f"environment {config.environment.name!r} has no demonstrator to warm-start from: give it one, or begin "
            "with a model that can act already, as treeagent train MODEL does"
        )
    return demonstrator

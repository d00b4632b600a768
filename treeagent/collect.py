"""Episodes of a scripted demonstrator, as trees of a single chain: the same artifact that search makes."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from treeagent.envs.base import Demonstrator
from treeagent.envs.calls import read_call
from treeagent.envs.dynamics import EnvDynamics
from treeagent.generators.chat import ChatFormat
from treeagent.grammar import Grammar
from treeagent.search.growth import Growth, backup, end, plant, take_step
from treeagent.search.node import Edge, Node, Tree
from treeagent.seeds import derive_seed
from treeagent.types import Message, Task


def demonstrate(
    dynamics: EnvDynamics, demonstrator: Demonstrator, tasks: Sequence[Task], *, seed: int, grammar: Grammar
) -> Iterator[Tree]:
    """One demonstration of each task. Actions carry text only: token ids come with a tokenizer, later.

    Where the grammar has calls of tools, a text that names a tool becomes one; another stays the text that is said.
    """
    with asyncio.Runner() as runner:
        for task in tasks:
            growth = runner.run(_episode(dynamics, demonstrator, task, derive_seed(seed, task.id), grammar))
            yield growth.tree


async def _episode(
    dynamics: EnvDynamics, demonstrator: Demonstrator, task: Task, seed: int, grammar: Grammar
) -> Growth:
    rng = random.Random(seed)
    tools = () if grammar.calls == "text" else dynamics.env.tools()
    (growth,) = await plant(dynamics, [task], [seed])
    path: list[Edge] = []
    while not (node := end(growth, path)).ended:
        # The environment stands where the last step left it, which is where the demonstrator must act.
        thought, text = demonstrator.act(rng)
        call = read_call(text, tools)
        action = grammar.read(grammar.write(thought, text if isinstance(call, str) else call))
        node.edges.append(Edge(action, prior=1.0))
        path.append(node.edges[-1])
        await take_step(dynamics, growth, path)
        if growth.tree.error:
            return growth
    backup(path, growth)
    return growth


def tokenise(tree: Tree, chat: ChatFormat) -> Tree:
    """A demonstration with the ids that a policy reading it would see, up to where it could read no further; the tree
    given stays as it is."""
    node = tree.root
    messages = node.state.messages
    root = Node(node.state, context_ids=chat.context_ids(messages))
    copy = root
    while node.edges and (child := node.edges[0].child) is not None:
        edge = node.edges[0]
        action = replace(edge.action, token_ids=chat.encode_action(edge.action.text))
        said = Message("assistant", action.text, action.token_ids)
        messages = (*messages, said, *child.state.messages[len(messages) + 1 :])
        reading = chat.read(messages)
        if reading.error:
            break
        state = replace(child.state, messages=messages)
        below = replace(child, state=state, context_ids=chat.added_ids(reading), left_out=reading.left_out, edges=[])
        copy.edges = [Edge(action, edge.prior, edge.visits, edge.value_sum, edge.reward, below)]
        node, copy = child, below
    return Tree(tree.task, tree.seed, root, tree.budget, tree.error)

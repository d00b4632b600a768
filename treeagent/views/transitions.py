"""Transitions for a world model: a pure view of a search tree."""

from collections.abc import Iterator, Sequence

from treeagent.generators.turn import Grammar, ReAct, make_grammar
from treeagent.search.node import Edge, Tree
from treeagent.world_model.transition import Experience, call_text, environment_history, last_answer
from treeagent.world_model.wording import RESET


def transitions(tree: Tree, format: str = "react") -> Iterator[Experience]:
    """Every step that the tree has taken, each edge once, parents first. Its turns are in ``format``."""
    grammar = make_grammar(format)
    for path, _ in tree.walk():
        if path and (experience := transition(tree, path, grammar)) is not None:
            yield experience


def transition(tree: Tree, path: Sequence[Edge], grammar: Grammar) -> Experience | None:
    """The last step of a path, as an experience for the world model. None for a thought alone, for a malformed turn
    (which never reaches the environment), and for a step with a withheld reward."""
    edge, node = path[-1], path[-1].child
    messages = ((path[-2].child if len(path) > 1 else None) or tree.root).state.messages
    action = grammar.read(messages[-1].content + edge.action.text) if messages[-1].partial else edge.action
    reward = edge.outcome  # a world model must not depend on reward weights
    if edge.thought or action.error or reward is None or node is None:
        return None
    return Experience(
        task_id=tree.task.id,
        history=environment_history(tree.task, messages[:-1] if messages[-1].partial else messages, grammar),
        action=call_text(action.call),
        observation=last_answer(node.state.messages),
        reward=reward,
        terminated=node.terminated,
        truncated=node.truncated,
        invalid=node.invalid,
        origin=node.origin,
        depth=sum(not earlier.thought for earlier in path[:-1]),
    )


def opening(tree: Tree) -> Experience:
    """The beginning of the task as the answer to a reset, for a world model that also opens tasks."""
    task, first = environment_history(tree.task, tree.root.state.messages[:1], ReAct())
    return Experience(tree.task.id, (task,), RESET, first.content, origin=tree.root.origin)

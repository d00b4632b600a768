"""Transitions for a world model: a pure view of a search tree."""

from collections.abc import Iterator, Sequence

from treeagent.generators.grammar import Format, Grammar, ReAct, written_in
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action
from treeagent.world_model.transition import Experience, answered, call_text, played
from treeagent.world_model.wording import RESET


def tree_grammar(tree: Tree, format: Format) -> Grammar:
    """The grammar that the tree's turns are written in."""
    return written_in(format, (edge.action.text for node in tree.nodes() for edge in node.edges))


def transitions(tree: Tree, format: Format = "react") -> Iterator[Experience]:
    """Every step that the tree has taken, each edge once, parents first; its turns are of ``format``."""
    grammar = tree_grammar(tree, format)
    for path, _ in tree.walk():
        if path and (one := transition(tree, path, grammar)) is not None:
            yield one


def transition(tree: Tree, path: Sequence[Edge], grammar: Grammar) -> Experience | None:
    """The last step of a path, which the tree has taken.

    None is what tells nothing of the world: a thought alone, a malformed turn (which no environment gets to see) and a
    step whose reward is withheld.
    """
    edge, node = path[-1], path[-1].child
    parent = (path[-2].child if len(path) > 1 else None) or tree.root
    action = _turn(parent, edge.action, grammar)
    reward = edge.outcome  # what the world answers does not depend on the settings' weights
    if edge.thought or action.error or reward is None or node is None:
        return None
    told = parent.state.messages
    return Experience(
        task_id=tree.task.id,
        history=played(tree.task, told[:-1] if told[-1].partial else told, grammar),
        action=call_text(action.call),
        observation=answered(node.state.messages),
        reward=reward,
        terminated=node.terminated,
        truncated=node.truncated,
        invalid=node.invalid,
        origin=node.origin,
        depth=sum(not earlier.thought for earlier in path[:-1]),
    )


def opening(tree: Tree) -> Experience:
    """How the task begins, as the answer to a reset, for a world model that is to open tasks too."""
    task, first = played(tree.task, tree.root.state.messages[:1], ReAct())
    return Experience(tree.task.id, (task,), RESET, first.content, origin=tree.root.origin)


def _turn(parent: Node, action: Action, grammar: Grammar) -> Action:
    """The whole turn, where its thought is a step of its own."""
    begun = parent.state.messages[-1]
    return grammar.read(begun.content + action.text) if begun.partial else action

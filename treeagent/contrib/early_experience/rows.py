"""Early experience (Zhang et al. 2025): the results of actions tried at a state, as training rows for the policy
itself.

Of all views, only ``world_rows`` puts a loss on observations.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from treeagent.generators.turn import Grammar
from treeagent.search.node import Edge, Node, Tree, finished_paths, path_origin, path_return, reaches
from treeagent.search.node import outcome as own_return
from treeagent.views.tokens import TokenRow
from treeagent.views.transitions import transition
from treeagent.world_model.trace import affects_return, describe_step
from treeagent.world_model.transition import Experience


def world_rows(tree: Tree) -> Iterator[TokenRow]:
    """Implicit world modelling: rows with the loss L = -Σ log p(s'|s,a) on the environment's answers alone.

    An answer consists of the tokens that it adds to the prompt, including chat template marks. It follows the policy's
    own conversation up to and including the action. Each answer carries loss in exactly one row. Imagined answers carry
    no loss. Answers after which the prompt starts anew carry none either, because they follow their action in no
    prompt.
    """
    taught: set[int] = set()
    for path, node in tree.walk():
        if any(edge.child is not None for edge in node.edges):
            continue
        for start, edges in tree.segments(path):
            states = [edge.child for edge in edges if edge.child is not None and not edge.child.left_out]
            new = {id(state) for state in states if state.origin == "real"} - taught
            taught |= new
            ids, mask = list(start.context_ids), [False] * len(start.context_ids)
            for edge in edges:
                answer = () if edge.child is None or edge.child.left_out else edge.child.context_ids
                ids += (*edge.action.token_ids, *answer)
                mask += [False] * len(edge.action.token_ids) + [id(edge.child) in new] * len(answer)
            if any(mask):
                yield TokenRow(tree.task.id, tuple(ids), tuple(mask))


class Outcome(NamedTuple):
    """The best end that was found below an action. Outcomes are ordered; a greater one is better."""

    value: float
    """Discounted sum of the rewards from the action on."""
    negative_steps: int
    """Minus the number of steps until the end, so that among equal returns the earlier end is better."""
    way: Sequence[Edge] = ()
    """The edges from the state to this end."""

    def __str__(self) -> str:
        return f"reward {round(self.value, 3):g} in {-self.negative_steps}"


@dataclass(frozen=True, slots=True)
class Reflection:
    """A turn that explains why its action is better than another."""

    path: tuple[Edge, ...]
    """The edges from the root to the state at which the turn is written."""
    turn: str
    """A thought that consists of the best action's thought and the reflection, then the best action's call."""


def reflections(tree: Tree, min_return: float, grammar: Grammar) -> Iterator[Reflection]:
    """For each state, compare the best action with every other call tried there that had a worse outcome, and give one
    reflection for each (as in the paper's equation 4).

    Only real steps with an end below them are compared, and the best action is one that ``tree.may_prefer``.

    Args:
        min_return: lowest undiscounted return of the best path, by the environment's own rewards.
        grammar: the format of the tree's turns.
    """
    outcomes = _best_ends(tree)
    for path, node in tree.walk():
        tried = _tried_calls(tree, path, node, grammar, outcomes) if len(node.edges) > 1 else []
        allowed = [each for each in tried if tree.may_prefer(each[1].way[0])]
        if len(tried) < 2 or not allowed:
            continue
        best, found = max(allowed, key=lambda each: each[1][:2])
        edge = found.way[0]
        if not reaches(own_return((*path, *found.way)), min_return):
            continue
        for other, lost in tried:
            if lost[:2] < found[:2]:
                comparison = reflection(best, str(found), other, str(lost))
                thought = " . ".join(filter(None, (edge.action.thought, comparison)))
                turn = grammar.write(thought, edge.action.call)
                if grammar.read(turn).call == edge.action.call:  # an observation may contain a call
                    yield Reflection(path, turn)


def reflection(better: Experience, found: str, other: Experience, lost: str) -> str:
    """One line that says why ``better`` is better than ``other``, another action in the same state: what each did, and
    what it led to (``found`` and ``lost``)."""
    tried, chosen = (describe_step(one, with_items=affects_return(one)) for one in (other, better))
    return f"not {other.action} : {tried} , {lost} . better : {chosen} , {found}"


def reflection_rows(
    tree: Tree, min_return: float, grammar: Grammar, encode_action: Callable[[str], tuple[int, ...]]
) -> Iterator[TokenRow]:
    """Each reflection as a row: the prompt that the policy read at its state, then the turn, which carries the loss."""
    for each in reflections(tree, min_return, grammar):
        prompt, turn_ids = tree.prompt_ids(each.path), encode_action(each.turn)
        yield TokenRow(tree.task.id, prompt + turn_ids, (False,) * len(prompt) + (True,) * len(turn_ids))


def _tried_calls(
    tree: Tree, path: Sequence[Edge], node: Node, grammar: Grammar, outcomes: Mapping[int, Outcome]
) -> list[tuple[Experience, Outcome]]:
    """The calls of whole turns tried at a state, if an end is known below them. Each call appears once, with its best
    outcome."""
    by_call: dict[str, tuple[Experience, Outcome]] = {}
    for edge in node.edges:
        outcome = outcomes.get(id(edge))
        step = None if outcome is None else transition(tree, (*path, edge), grammar)
        if outcome is None or step is None or node.state.messages[-1].partial:
            continue
        if step.action not in by_call or by_call[step.action][1][:2] < outcome[:2]:
            by_call[step.action] = step, outcome
    return list(by_call.values())


def _best_ends(tree: Tree) -> dict[int, Outcome]:
    """The best real end below each action with a known reward, by ``id`` of its edge."""
    found: dict[int, Outcome] = {}
    for path in finished_paths(tree):
        if path_origin(path) == "real" and path[-1].reward is not None:
            for start, edge in enumerate(path):
                way = path[start:]
                outcome = Outcome(path_return(way, tree.discount), -len(way), way)
                if id(edge) not in found or found[id(edge)][:2] < outcome[:2]:
                    found[id(edge)] = outcome
    return found

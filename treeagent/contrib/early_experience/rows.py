"""Early experience (Zhang et al. 2025): the results of actions tried at a state, as training rows for the policy
itself.

Of all views, only ``world_rows`` puts a loss on observations.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from treeagent.generators.turn import Grammar
from treeagent.search.node import Edge, Node, Tree, edges_below, reaches
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
    for path, node in tree.walk():
        tried = _tried_calls(tree, path, node, grammar) if len(node.edges) > 1 else []
        if len(tried) < 2:
            continue
        allowed = [each for each in tried if tree.may_prefer(each.edge)]
        best = max(allowed, key=lambda each: each.outcome, default=None)
        if best is None or not reaches(own_return((*path, *best.way)), min_return):
            continue
        for other in tried:
            if other.outcome < best.outcome:
                comparison = reflection(best.step, str(best.outcome), other.step, str(other.outcome))
                thought = " . ".join(filter(None, (best.edge.action.thought, comparison)))
                turn = grammar.write(thought, best.edge.action.call)
                if grammar.read(turn).call == best.edge.action.call:  # an observation may contain a call
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


class _Tried(NamedTuple):
    step: Experience
    outcome: Outcome
    way: tuple[Edge, ...]
    """The edges from the state to the end with this outcome."""

    @property
    def edge(self) -> Edge:
        return self.way[0]


def _tried_calls(tree: Tree, path: Sequence[Edge], node: Node, grammar: Grammar) -> list[_Tried]:
    """The calls of whole turns tried at a state, if an end is known below them. Each call appears once, with its best
    outcome."""
    by_call: dict[str, _Tried] = {}
    for edge in node.edges:
        best = _best_end(edge, tree.discount)
        step = transition(tree, (*path, edge), grammar) if best is not None else None
        if best is None or step is None or node.state.messages[-1].partial:
            continue
        outcome, way = best
        known = by_call.get(step.action)
        if known is None or known.outcome < outcome:
            by_call[step.action] = _Tried(step, outcome, way)
    return list(by_call.values())


def _best_end(edge: Edge, discount: float) -> tuple[Outcome, tuple[Edge, ...]] | None:
    """The best outcome below an action, and the edges from it to that end. None if no real end was reached there."""
    found: dict[int, tuple[Outcome, Edge | None]] = {}
    """For each edge the best outcome from it on, and the next edge on the way there."""
    for each in reversed(edges_below(edge)):
        node = each.child
        if node is None or node.origin != "real" or node.unknown or each.reward is None:
            continue
        if node.ended:
            found[id(each)] = Outcome(each.reward, -1), None
        elif below := [lower for lower in node.edges if id(lower) in found]:
            after = max(below, key=lambda lower: found[id(lower)][0])
            best = found[id(after)][0]
            found[id(each)] = Outcome(each.reward + discount * best.value, best.negative_steps - 1), after
    if id(edge) not in found:
        return None
    way = [edge]
    while (following := found[id(way[-1])][1]) is not None:
        way.append(following)
    return found[id(edge)][0], tuple(way)

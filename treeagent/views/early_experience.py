"""Early experience (Zhang et al. 2025): what actions tried at a state led to, as rows for the policy itself.

Both views are for a warm start that asks for them, and for no update: ``world_rows`` alone put a loss on observations.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from treeagent.generators.grammar import Grammar
from treeagent.search.node import Edge, Node, Tree, reaches
from treeagent.views.imitation import TargetConfig
from treeagent.views.tokens import TokenRow
from treeagent.views.transitions import transition
from treeagent.world_model.trace import reflection
from treeagent.world_model.transition import Experience


def world_rows(tree: Tree) -> Iterator[TokenRow]:
    """Implicit world modelling: a loss on what the environment answered, behind the policy's own conversation up to and
    with its action, and on nothing else; L = -Σ log p(s'|s,a).

    An answer is the tokens that it adds to the prompt, the chat template's marks around it included. Each is learnt in
    one row, those of a path in one. Left out are imagined answers, and those behind which the prompt starts anew, since
    they do not follow the action in any prompt.
    """
    told: set[int] = set()
    for path, node in tree.walk():
        if any(edge.child is not None for edge in node.edges):
            continue
        for start, edges in tree.segments(path):
            ids, mask = list(start.context_ids), [False] * len(start.context_ids)
            for edge in edges:
                ids += edge.action.token_ids
                mask += [False] * len(edge.action.token_ids)
                if edge.child is not None and not edge.child.left_out:
                    learnt = edge.child.origin == "real" and id(edge.child) not in told
                    told.add(id(edge.child))
                    ids += edge.child.context_ids
                    mask += [learnt] * len(edge.child.context_ids)
            if any(mask):
                yield TokenRow(tree.task.id, tuple(ids), tuple(mask))


class Outcome(NamedTuple):
    """What an action came to, at best; the greater one is better."""

    value: float
    """The return from the action on, of rewards alone."""
    hurry: int
    """Minus the steps until the end: of equal returns the sooner is better."""

    def __str__(self) -> str:
        return f"reward {round(self.value, 3):g} in {-self.hurry}"


@dataclass(frozen=True, slots=True)
class Reflection:
    """A turn that says why its action is better than another one."""

    path: tuple[Edge, ...]
    """To the state at which it is said."""
    turn: str
    """The best action's thought and the reflection as one thought, then its call."""


def reflections(tree: Tree, config: TargetConfig, grammar: Grammar) -> Iterator[Reflection]:
    """For each state, its best action against every other call that was tried there and came to less (the paper's
    equation 4 has a row for each alternative, too).

    All is of real steps: what is compared has an end below it that was reached. The best action returns
    ``config.min_return`` or more. Where think and action are nodes of their own there are no reflections.
    """
    for path, node in tree.walk():
        tried = _tried(tree, path, node, grammar)
        if len(tried) < 2:
            continue
        best = max(tried, key=lambda each: each.outcome)
        for other in tried if reaches(best.outcome.value, config.min_return) else ():
            if other.outcome < best.outcome:
                said = reflection(best.step, str(best.outcome), other.step, str(other.outcome))
                thought = " . ".join(filter(None, (best.edge.action.thought, said)))
                turn = grammar.write(thought, best.edge.action.call)
                if grammar.read(turn).call == best.edge.action.call:  # a page may hold words that spell a call
                    yield Reflection(path, turn)


def reflection_rows(
    tree: Tree, config: TargetConfig, grammar: Grammar, encode_action: Callable[[str], tuple[int, ...]]
) -> Iterator[TokenRow]:
    """Reflections behind the prompts that the policy read at their states, with a loss on the turn alone; its text is
    new, and becomes tokens here for the first time."""
    for one in reflections(tree, config, grammar):
        prompt, said = tree.prompt_ids(one.path), encode_action(one.turn)
        yield TokenRow(tree.task.id, prompt + said, (False,) * len(prompt) + (True,) * len(said))


class _Tried(NamedTuple):
    edge: Edge
    step: Experience
    outcome: Outcome


def _tried(tree: Tree, path: Sequence[Edge], node: Node, grammar: Grammar) -> list[_Tried]:
    """The calls of whole turns tried at a state whose ends are known, each once, at its best."""
    by_call: dict[str, _Tried] = {}
    for edge in node.edges:
        outcome = _outcome(edge, tree.discount)
        step = transition(tree, (*path, edge), grammar) if outcome is not None else None
        if outcome is None or step is None or node.state.messages[-1].partial:
            continue
        known = by_call.get(step.action)
        if known is None or known.outcome < outcome:
            by_call[step.action] = _Tried(edge, step, outcome)
    return list(by_call.values())


def _outcome(edge: Edge, discount: float) -> Outcome | None:
    """None where no end was reached for real."""
    node = edge.child
    if node is None or node.origin != "real" or node.unknown or edge.reward is None:
        return None
    if node.ended:
        return Outcome(edge.reward, -1)
    below = [outcome for each in node.edges if (outcome := _outcome(each, discount)) is not None]
    if not below:
        return None
    best = max(below)
    return Outcome(edge.reward + discount * best.value, best.hurry - 1)

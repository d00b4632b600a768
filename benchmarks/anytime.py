"""What a search had found and would have taken at each smaller cost, from the cost that its tree records at the end of
each simulation (``Tree.spent``)."""

from collections.abc import Sequence
from dataclasses import dataclass

from treeagent.search.decide import end_rank
from treeagent.search.node import Edge, Node, Spent, Tree, succeeds


@dataclass(frozen=True, slots=True)
class Moment:
    """The state of a search after one of its simulations."""

    spent: Spent
    found: bool
    """Whether the ends that it had reached included a success."""
    taken: bool
    """Whether the end that it would have taken was a success."""


def moments(tree: Tree, likelihood_weight: float = 0.0) -> list[Moment]:
    """The first and the last moment of a search, and those at which ``found`` or ``taken`` changed.

    The result is empty if the tree does not store the cost of each simulation, or if the reward of an end is unknown.

    Args:
        likelihood_weight: λ of the decision "leaf".
    """
    ends = {id(node): (path, node) for path, node in tree.walk() if path and node.ended and not node.unknown}
    if len(tree.spent) != len(tree.order) or any(_success(*end) is None for end in ends.values()):
        return []
    if not tree.order and not ends:  # the search broke off before its first simulation
        budget = tree.budget
        steps = budget.environment_steps + budget.imagined_steps
        return [Moment(Spent(budget.generated_tokens, steps, budget.seconds), found=False, taken=False)]
    changes: list[Moment] = []
    found = taken = False
    best: tuple[bool, float, float, int] | None = None
    for node, spent in zip(tree.order, tree.spent, strict=True):
        if node is not None and (end := ends.pop(id(node), None)) is not None:
            success = bool(_success(*end))
            found |= success
            if best is None or end_rank(tree, *end, likelihood_weight) > best:
                best, taken = end_rank(tree, *end, likelihood_weight), success
        if not changes or (changes[-1].found, changes[-1].taken) != (found, taken):
            changes.append(Moment(spent, found, taken))
    found |= any(_success(*end) for end in ends.values())  # lookahead also reaches ends at which no simulation ends
    if changes and changes[-1] != (last := Moment(tree.spent[-1], found, taken)):
        changes.append(last)
    return changes


def _success(path: Sequence[Edge], node: Node) -> bool | None:
    """Whether an end is a success; None if its reward was withheld and not stored later (``Edge.own_reward``)."""
    if not node.final:
        return False
    if path[-1].own_reward is None and any(edge.outcome is None for edge in path):
        return None
    return succeeds(path)

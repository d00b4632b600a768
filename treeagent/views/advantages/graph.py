"""Search advantages on the graph of a task's trees, in which equal states are one state s:
A(s,a) = Q(s,a) - Σ_b N(s,b) Q(s,b) / Σ_b N(s,b).

N(s,a) and W(s,a) are sums over all actions with the same call that were tried in this state, in whatever tree and after
whatever path.
"""

from collections import defaultdict
from collections.abc import Sequence

from treeagent.search.node import Edge, Tree
from treeagent.search.puct import merge_key


def graph_advantages(trees: Sequence[Tree], min_visits: int) -> dict[int, float]:
    """A(s,a) in reward units by ``id`` of the edge.

    Two states are equal if the environment's keys are equal, whatever the number of steps left. A state without a key
    equals only itself.

    Args:
        trees: all trees of the task.
        min_visits: edges with fewer visits count neither as actions nor as siblings.
    """
    states: defaultdict[str | int, list[Edge]] = defaultdict(list)
    for tree in trees:
        for node in tree.nodes():
            key = id(node) if node.state.key is None else node.state.key.partition(" ")[2]
            states[key] += [edge for edge in node.edges if edge.visits >= min_visits]
    scored: dict[int, float] = {}
    for tried in states.values():
        visits, totals = defaultdict[object, int](int), defaultdict[object, float](float)
        for edge in tried:
            visits[merge_key(edge.action)] += edge.visits
            totals[merge_key(edge.action)] += edge.value_sum
        if len(visits) > 1:
            baseline = sum(totals.values()) / sum(visits.values())
            scored.update(
                {id(edge): totals[key] / visits[key] - baseline for edge in tried for key in [merge_key(edge.action)]}
            )
    return scored

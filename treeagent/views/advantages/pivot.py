"""Advantages of single steps at states of mixed outcome (PivotRL): A(s,a) = (r_a - mean r) / std r over the actions
tried at s. r_a is 1 if a success was found beyond the action, and 0 if every episode that ended beyond it failed.

States at which all actions have the same r teach nothing, and are left out.
"""

from treeagent.search.node import Tree
from treeagent.views.advantages.common import relative
from treeagent.views.values import found_success


def pivot_advantages(tree: Tree) -> dict[int, float]:
    """A(s,a) by ``id`` of the edge. Actions beyond which no episode ended are left out."""
    found, scored = found_success(tree), dict[int, float]()
    for node in tree.nodes():
        known = [edge for edge in node.edges if edge.child is not None and id(edge.child) in found]
        rewards = relative([float(found[id(edge.child)]) for edge in known])
        scored.update({id(edge): reward for edge, reward in zip(known, rewards, strict=True) if reward})
    return scored

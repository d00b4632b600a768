"""Applies reviewers' marks to a tree before the views read it."""

from collections.abc import Mapping, Sequence

from treeagent.contrib.people.marks import Mark, label, state_hash
from treeagent.search.node import Edge, Tree, outcome, path_return


def apply_marks(tree: Tree, marks: Mapping[str, Sequence[Mark]], process_weight: float = 0.0) -> Tree:
    """Change a tree in memory according to reviewers' marks, and return it. People outrank judges, and both outrank the
    search:

    * An action with a "veto", "edit" or "unsafe" is never preferred (``Tree.may_prefer``). If an episode was vetoed,
      this applies to its last action.
    * An end that reviewers call "solved" gets the return 1, and one that they call "failed" gets 0; the change is
      backed up. It overrides what a judge or tiers said of the end (the components ``judge``, ``verdict`` and
      ``hacked``).
    * Every state keeps its marks, from which ``preference_pairs`` reads comparisons.

    Args:
        tree: a tree that nothing else uses.
        marks: the marks of the tree's task by state, as ``marks.deciding`` returns them.
        process_weight: ``search.process_weight`` with which the tree grew.
    """
    for node in tree.nodes():
        node.marks = list(marks.get(state_hash(tree.task.id, node.state.messages), ()))
        for edge in node.edges:
            edge.vetoed = any(mark.refuses(edge.action.text) for mark in node.marks)
    for path, node in tree.walk():
        if path and node.ended and node.marks:
            if any(mark.verdict == "veto" for mark in node.marks):
                path[-1].vetoed = True
            if (judged := label(node.marks)) is not None:
                _relabel(path, float(judged[0]), tree.discount, process_weight)
    return tree


def _relabel(path: Sequence[Edge], target: float, discount: float, process_weight: float) -> None:
    """Set the undiscounted return of a finished path, by the environment's own rewards, to ``target``. The reward of
    the last action changes, and V(s) after it no longer counts. The change of the return is backed up to the root: for
    each visit of the last action it is added, discounted and without the share of process rewards, to W of every action
    on the path. If rewards are weighted sums, the last reward changes by the same amount until it is reweighed.

    Simulations that search counted as revisits of a known end further up (``growth.backup``) keep their returns.
    """
    last = path[-1]
    child = last.child
    if child is None or child.unknown:
        return
    hacked, before = last.hacked, path_return([last], discount)
    if last.components:
        last.components = {**last.components, "judge": target, "verdict": target, "hacked": 0.0}
    child.bootstrap = False  # the reviewer judged the end, so V(s) must not be added
    last.reward = last.reward or 0.0  # an imported transcript may have no reward
    missing = target - outcome(path)
    last.reward += target if hacked else missing  # a hacked end took back the earlier rewards
    if "outcome" in last.components:
        last.components = {**last.components, "outcome": last.components["outcome"] + missing}
    change = (1 - process_weight) * (path_return([last], discount) - before)
    for edge in reversed(path):
        if edge is not last:
            change *= edge.discount(discount)
        edge.value_sum += last.visits * change

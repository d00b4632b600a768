"""Marks of reviewers, laid on a tree before the views read it."""

from collections.abc import Mapping, Sequence

from treeagent.marks import Mark, label, state_hash
from treeagent.search.node import Edge, Tree, outcome


def lay_marks(tree: Tree, marks: Mapping[str, Sequence[Mark]]) -> Tree:
    """Change a tree in memory by what reviewers said of it, and return it. People outrank judges, and both outrank what
    the search found:

    * An action with a "veto", "edit" or "unsafe" is never preferred (``Tree.may_prefer``); an episode that was vetoed
      loses its last action so.
    * An end that reviewers call "solved" gets the return 1, one that they call "failed" the return 0, and the change is
      backed up. What a judge or tiers said of it (the components ``judge``, ``verdict`` and ``hacked``) gives way.
    * Every state keeps its marks, from which ``preference_pairs`` reads comparisons.

    Args:
        tree: a tree that nothing else uses.
        marks: the marks of its task by state, as ``marks.deciding`` gives them.
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
                _relabel(path, float(judged[0]), tree.discount)
    return tree


def _relabel(path: Sequence[Edge], wanted: float, discount: float) -> None:
    """Give a finished path the undiscounted return ``wanted`` of the environment's own rewards, by that of its last
    action, and back the change up to the root: each visit of the last action adds it to W of every action on the path,
    discounted. Where rewards are weighted sums, the last one changes by as much until it is weighed anew.

    Simulations that search counted as revisits of a known end further up (``growth.backup``) keep their returns.
    """
    last = path[-1]
    child = last.child
    if child is None or child.unknown:
        return
    change, hacked = wanted - outcome(path), last.hacked
    if last.components:
        last.components = {**last.components, "judge": wanted, "verdict": wanted, "hacked": 0.0}
    child.bootstrap = False  # the reviewer has seen the end, so that V(s) stands for nothing that would follow
    last.reward = last.reward or 0.0  # an imported transcript may state none
    missing = wanted - outcome(path)
    last.reward += change if hacked else missing  # a hacked end had taken back what the others paid
    if "outcome" in last.components:
        last.components = {**last.components, "outcome": last.components["outcome"] + missing}
    for edge in reversed(path):
        edge.value_sum += last.visits * change
        change *= 1.0 if edge.thought else discount

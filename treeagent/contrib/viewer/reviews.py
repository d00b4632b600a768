"""The reviewers' marks on the steps of a tree, as the viewer shows them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from treeagent.contrib.people.marks import Mark, state_hash
from treeagent.search.node import Edge, Tree
from treeagent.visible import visible

_OF_EPISODES = ("solved", "failed")
_OF_ENDS = (*_OF_EPISODES, "veto", "unsafe", "skip")


def step_marks(tree: Tree, marks: Sequence[Mark]) -> dict[int, list[dict[str, Any]]]:
    """The marks of each step as JSON values, by the ``id`` of its edge. Invisible characters are escaped.

    A comparison is listed at both actions: ``said`` is "better" at one and "worse" at the other ("tie" at both), and
    ``other`` is the call of the other action. A judgement of an episode is listed at its last step.

    Args:
        marks: the marks on the tree's task that are not withdrawn, including those made on other trees of the task.
    """
    states: dict[str, list[Mark]] = {}
    for mark in marks:
        states.setdefault(mark.state, []).append(mark)
    found: dict[int, list[dict[str, Any]]] = {}
    for node in tree.nodes() if states else ():
        state_marks = states.get(state_hash(tree.task.id, node.state.messages), ())
        for edge in node.edges:
            rows = [each for mark in state_marks for each in _of_action(mark, edge)]
            if edge.child is not None:
                ended = edge.child.ended
                then = states.get(state_hash(tree.task.id, edge.child.state.messages), ())
                of_end = _OF_ENDS if ended else _OF_EPISODES
                rows += [_packed(mark, mark.verdict) for mark in then if mark.verdict in of_end]
            if rows:
                found[id(edge)] = rows
    return found


def _of_action(mark: Mark, edge: Edge) -> Iterator[dict[str, Any]]:
    text = edge.action.text
    if mark.verdict in _OF_EPISODES or text not in mark.shown:
        return
    if mark.verdict in ("veto", "edit", "unsafe"):
        if mark.refuses(text):
            yield _packed(mark, mark.verdict)
        return
    index = mark.shown.index(text)
    compared = len(mark.shown) == 2 and mark.verdict in ("better", "tie")
    words = mark.verdict if mark.choice is None or mark.choice == index else "worse"
    calls = mark.calls if len(mark.calls) == len(mark.shown) else mark.shown
    yield _packed(mark, words, (calls[1 - index] or mark.shown[1 - index]) if compared else "")


def _packed(mark: Mark, verdict: str, other: str = "") -> dict[str, Any]:
    row = {
        "id": mark.id,
        "said": verdict,
        "who": mark.who,
        "when": mark.when[:16].replace("T", " "),
        "note": mark.note,
        "text": mark.text,
        "other": other,
    }
    return {name: visible(value, lines=True) for name, value in row.items() if value}


def by_task(marks: Sequence[Mark]) -> Mapping[str, Sequence[Mark]]:
    """Group marks by task id."""
    found: dict[str, list[Mark]] = {}
    for mark in marks:
        found.setdefault(mark.task_id, []).append(mark)
    return found

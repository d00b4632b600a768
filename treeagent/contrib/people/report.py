"""Statistics of the reviewers' marks on a run: counts, and agreement with each other, search and the environment."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from treeagent.contrib.people.marks import (
    FILE,
    Mark,
    agreement,
    deciding,
    effective_marks,
    label,
    preference,
    read_marks,
    state_hash,
)
from treeagent.pipeline.folder import Run
from treeagent.pipeline.report.parts import sentences, table
from treeagent.search.node import Tree, finished_paths, outcome, reaches
from treeagent.search.record import from_record
from treeagent.store import read_as, shard_names
from treeagent.world_model.fidelity import wilson_interval

_KINDS = {"better": "pairs of actions", "solved": "episodes"}
_COLUMNS = ("better", "tie", "skip", "veto", "edit", "unsafe", "solved", "failed")


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often two sources of judgement agree."""

    same: int
    items: int

    def words(self) -> str:
        low, high = wilson_interval(self.same, self.items)
        share = f"{self.same / self.items:.0%}, 95 % interval {low:.0%} to {high:.0%}"
        return f"{self.same} of {self.items} ({share})"


@dataclass(frozen=True, slots=True)
class Reviews:
    """Statistics of the marks of a run that are not withdrawn."""

    verdicts: Mapping[str, Counter[str]]
    """For each reviewer, how often each verdict was given. The name of a model that judged ends in " (a model)"."""
    alpha: Mapping[str, tuple[float | None, int]]
    """Krippendorff's α and the number of items for each kind of item, from ``marks.agreement``."""
    pairs: Agreement
    """How often Q is greater for the action that reviewers prefer, over pairs of tried actions. Pairs of equal Q are
    left out, because search prefers neither."""
    ends: Agreement
    """Over the judged ends of episodes and of training trees: for how many the environment's rewards agree."""


def reviews(run: Run) -> Reviews | None:
    """Compute the statistics of a run's marks; None if there are none.

    Raises:
        CorruptShard, StoreError: a shard or the file of marks is damaged.
    """
    marks = read_marks(run.path / FILE)
    count = effective_marks(marks)
    if not count:
        return None
    verdicts: dict[str, Counter[str]] = {}
    for mark in count:
        name = mark.who if mark.source == "human" else f"{mark.who} (a model)"
        verdicts.setdefault(name, Counter())[mark.verdict] += 1
    states = deciding(marks)
    tasks = {mark.task_id for mark in count}
    pairs, ends = dict[object, bool](), dict[object, bool]()
    for tree in _trees(run):
        if tree.task.id in tasks:
            pairs |= _pairs(tree, states)
            ends |= _ends(tree, states)
    compared, judged = (Agreement(sum(found.values()), len(found)) for found in (pairs, ends))
    return Reviews(verdicts, agreement(marks), compared, judged)


def _trees(run: Run) -> Iterator[Tree]:
    for name in run.collections():
        yield from read_as(from_record, run.trees, name)
    for name in shard_names(run.episodes):
        yield from read_as(from_record, run.episodes, name)


def _pairs(tree: Tree, states: Mapping[str, Sequence[Mark]]) -> Iterator[tuple[object, bool]]:
    for node in tree.nodes():
        state = state_hash(tree.task.id, node.state.messages)
        tried = [edge for edge in node.edges if edge.visits]
        for index, first in enumerate(tried if state in states else ()):
            for second in tried[index + 1 :]:
                judgement = preference(states[state], first.action.text, second.action.text)
                if judgement is not None and judgement[0] and first.value != second.value:
                    item = (state, frozenset((first.action.text, second.action.text)))
                    yield item, (first.value > second.value) == (judgement[0] > 0)


def _ends(tree: Tree, states: Mapping[str, Sequence[Mark]]) -> Iterator[tuple[object, bool]]:
    for path in finished_paths(tree):
        child = path[-1].child
        assert child is not None  # a finished path ends in a state
        state = state_hash(tree.task.id, child.state.messages)
        judged = label(states.get(state, ()))
        if judged is not None and path[-1].outcome is not None:
            yield state, reaches(outcome(path), 1.0) == judged[0]


def reviews_html(found: Reviews | None) -> str:
    """The HTML section on reviews; empty if there are none."""
    if found is None:
        return ""
    verdicts = [verdict for verdict in _COLUMNS if any(counts[verdict] for counts in found.verdicts.values())]
    rows = [
        {"": who, "marks": str(counts.total())} | {verdict: str(counts[verdict] or "") for verdict in verdicts}
        for who, counts in found.verdicts.items()
    ]
    notes = []
    for kind, (alpha, items) in found.alpha.items():
        if items:
            value = "is undefined, as all say the same" if alpha is None else f"is {alpha:.2f}"
            notes.append(f"Krippendorff's α of {items} {_KINDS[kind]} that two or more people judged {value}.")
    if found.pairs.items:
        notes.append(f"Search agrees on {found.pairs.words()} of the pairs: Q is greater for the preferred action.")
    if found.ends.items:
        notes.append(f"The environment agrees on {found.ends.words()} of the judged ends.")
    columns = {"": "reviewer"} | {name: name for name in ("marks", *verdicts)}
    return f"<h2>What reviewers said</h2>{table(columns, rows, words=('',))}{sentences(notes)}"

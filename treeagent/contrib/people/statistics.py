"""Statistics of the reviewers' marks on a run: how often search and the environment agree with them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from treeagent.contrib.people.marks import FILE, Mark, deciding, label, preference, read_marks, state_hash
from treeagent.pipeline.folder import Run
from treeagent.search.node import Tree, finished_paths, path_return, reaches
from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.world_model.fidelity import wilson_interval


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often two sources of judgement agree."""

    same: int
    items: int

    def words(self) -> str:
        low, high = wilson_interval(self.same, self.items)
        share = f"{self.same / self.items:.0%}, 95 % interval {low:.0%} to {high:.0%}"
        return f"{self.same} of {self.items} ({share})"


def agreements(run: Run) -> tuple[Agreement, Agreement]:
    """With how many preferences of reviewers Q agrees, over pairs of tried actions with different Q; and with how many
    of their labels of episodes the environment's rewards agree.

    Raises:
        CorruptShard, StoreError: a shard or the file of marks is damaged.
    """
    states = deciding(read_marks(run.path / FILE))
    tasks = {mark.task_id for marks in states.values() for mark in marks}
    pairs, ends = dict[object, bool](), dict[object, bool]()
    for folder in (run.trees, run.episodes):
        for tree in read_as(from_record, folder):
            if tree.task.id in tasks:
                pairs |= _pairs(tree, states)
                ends |= _ends(tree, states)
    return Agreement(sum(pairs.values()), len(pairs)), Agreement(sum(ends.values()), len(ends))


def _pairs(tree: Tree, states: Mapping[str, Sequence[Mark]]) -> Iterator[tuple[object, bool]]:
    for node in tree.nodes():
        state = state_hash(tree.task.id, node.state.messages)
        tried = [edge for edge in node.edges if edge.visits]
        for index, first in enumerate(tried if state in states else ()):
            for second in tried[index + 1 :]:
                better = preference(states[state], first.action.text, second.action.text)
                if better and first.value != second.value:
                    item = (state, frozenset((first.action.text, second.action.text)))
                    yield item, (first.value > second.value) == (better > 0)


def _ends(tree: Tree, states: Mapping[str, Sequence[Mark]]) -> Iterator[tuple[object, bool]]:
    for path in finished_paths(tree):
        child = path[-1].child
        assert child is not None  # a finished path ends in a state
        state = state_hash(tree.task.id, child.state.messages)
        judged = label(states.get(state, ()))
        if judged is not None and path[-1].reward is not None:
            yield state, reaches(path_return(path), 1.0) == judged

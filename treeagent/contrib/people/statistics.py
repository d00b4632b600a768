"""How often search and the environment agree with reviewers."""

from itertools import combinations

from treeagent.contrib.people.marks import FILE, deciding, label, preference, read_marks, state_hash
from treeagent.pipeline.folder import Run
from treeagent.search.node import path_return, reaches
from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.world_model.fidelity import wilson_interval


def agreements(run: Run) -> tuple[list[bool], list[bool]]:
    """For each pair of tried actions of different Q that reviewers compare, whether Q agrees with them; and for each
    episode that they judge, whether the environment's rewards do."""
    states = deciding(read_marks(run.path / FILE))
    pairs, ends = dict[object, bool](), dict[object, bool]()
    for folder in (run.trees, run.episodes):
        for tree in read_as(from_record, folder):
            for path, node in tree.walk():
                state = state_hash(tree.task.id, node.state.messages)
                marks = states.get(state, [])
                tried = [edge for edge in node.edges if marks and edge.visits]
                for first, second in combinations(tried, 2):
                    better = preference(marks, first.action.text, second.action.text)
                    if better and first.value != second.value:
                        item = state, frozenset((first.action.text, second.action.text))
                        pairs[item] = (first.value > second.value) == (better > 0)
                solved = label(marks)
                if path and node.ended and solved is not None and path[-1].reward is not None:
                    ends[state] = reaches(path_return(path), 1.0) == solved
    return list(pairs.values()), list(ends.values())


def in_words(agree: list[bool]) -> str:
    """A share with its Wilson interval."""
    same, count = sum(agree), len(agree)
    low, high = wilson_interval(same, count)
    return f"{same} of {count} ({same / count:.0%}, 95 % interval {low:.0%} to {high:.0%})"

"""Results as reviewers judge them: their labels of episodes replace the environment's own verdict."""

from collections.abc import Mapping, Sequence

from treeagent.contrib.people.marks import Mark, deciding, label, state_hash
from treeagent.pipeline.folder import Run
from treeagent.pipeline.outcomes import Row, stage_of_row
from treeagent.pipeline.trees import run_marks
from treeagent.search.node import Node, Tree
from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.world_model.fidelity import wilson_interval


def reviewed_rows(run: Run) -> list[Row]:
    """The rows of the last evaluation. If reviewers judged episodes of a row, their labels of these episodes change its
    ``solved``, ``success`` and interval. Such a row also has ``judged``, the number of these episodes, and ``agreed``,
    the number of them with the same verdict by the environment. It lacks ``taken`` if a label contradicts the
    environment, by which ``taken`` was counted. Other rows stay as they are.

    Raises:
        CorruptShard, StoreError, RunError: a file is damaged.
    """
    rows, states = run.result_rows(), deciding(run_marks(run.episodes))
    if not any(label(found) for found in states.values()):
        return rows
    return [_reviewed(run, row, states) for row in rows]


def _reviewed(run: Run, row: Row, states: Mapping[str, Sequence[Mark]]) -> Row:
    stage = stage_of_row(row)
    verdicts = [_review_verdict(tree, states) for tree in read_as(from_record, run.episodes, stage)]
    before = str(row["solved"])
    # The episodes are from an earlier evaluation, or were not judged.
    if len(verdicts) != len(before) or all(each is None for each in verdicts):
        return row
    after = "".join(old if new is None else "01"[new] for old, new in zip(before, verdicts, strict=True))
    judged = [index for index, each in enumerate(verdicts) if each is not None]
    low, high = wilson_interval(after.count("1"), len(after))
    changed = {"solved": after, "success": after.count("1") / len(after), "success_low": low, "success_high": high}
    kept = {key: value for key, value in row.items() if key != "taken" or after == before}
    return kept | changed | {"judged": len(judged), "agreed": sum(before[index] == after[index] for index in judged)}


def _review_verdict(episode: Tree, states: Mapping[str, Sequence[Mark]]) -> bool | None:
    node: Node = episode.root
    while node.edges and (child := node.edges[0].child) is not None:
        node = child
    judged = label(states.get(state_hash(episode.task.id, node.state.messages), ()))
    return None if judged is None else judged[0]

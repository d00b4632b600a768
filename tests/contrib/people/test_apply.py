"""Effects of reviewers' marks on the tree of ``hand_tree``, by hand: Q is A 3/4, B 1/4, C 0; A1 1, A2 1/2."""

from pathlib import Path

import orjson
import pytest
from command import treeagent
from hand_trees import hand_tree
from review_sample import close_tree, sample_run

from treeagent.contrib.people.apply import EDITS, apply_marks
from treeagent.contrib.people.marks import FILE, Mark, append_mark, deciding, new_mark, state_hash
from treeagent.pipeline.folder import Run
from treeagent.pipeline.trees import read_trees
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.record import from_record, to_record
from treeagent.store import read_as
from treeagent.views.advantages import AdvantageConfig, advantages
from treeagent.views.imitation import ImitationConfig, imitation_rows
from treeagent.views.pairs import PairConfig, preference_pairs

MARGIN = 0.2


def say(tree: Tree, where: Node, verdict: str, *shown: str, choice: int | None = None, **more: object) -> Mark:
    state = state_hash(tree.task.id, where.state.messages)
    return new_mark("ada", verdict, state=state, shown=shown, choice=choice, **more)  # type: ignore[arg-type]


def pairs(tree: Tree, *marks: Mark) -> list[tuple[str, object]]:
    """The pairs that an update reads of the tree once it was stored."""
    apply_marks(tree, deciding(marks), MARGIN)
    made = preference_pairs(from_record(orjson.loads(orjson.dumps(to_record(tree)))), PairConfig(rule="all"))
    return [(f"{pair.chosen.text}>{pair.rejected.text}", pytest.approx(pair.margin)) for pair in made]


def below(edge: Edge) -> Node:
    assert edge.child is not None
    return edge.child


ALL = [("A>C", 0.75), ("A>B", 0.5), ("B>C", 0.25), ("A1>A2", 0.5)]


def test_the_preferred_action_gets_the_greater_value_and_at_least_the_margin() -> None:
    tree = hand_tree()
    assert pairs(tree, say(tree, tree.root, "better", "B", "A", choice=0)) == [
        ("B>C", 0.75),
        ("B>A", 0.5),
        ("A>C", 0.25),
        ALL[3],
    ]
    tree = hand_tree()
    a = below(tree.root.edges[0])
    for each in a.edges:
        each.value_sum = each.visits * 0.5
    assert pairs(tree, say(tree, a, "better", "A2", "A1", choice=0))[3:] == [("A2>A1", 0.2)]


def test_a_vetoed_action_is_worse_than_its_siblings_and_never_taught() -> None:
    tree = hand_tree()
    found = pairs(tree, say(tree, tree.root, "veto", "A", "B", choice=0))
    assert found == [("B>A", 0.45), ("B>C", 0.25), ("C>A", 0.2), ALL[3]]
    [row] = imitation_rows(tree, ImitationConfig())
    assert [token for token, kept in zip(row.token_ids, row.mask, strict=True) if kept] == [30]  # only A1, not A
    assert advantages([tree], AdvantageConfig())[id(tree.root.edges[0])] < 0


def test_a_run_is_written_anew_as_its_reviewers_judged_it(tmp_path: Path) -> None:
    run = sample_run(tmp_path / "run", trees=2)
    tree = close_tree("t1")
    left, remove = tree.root.edges
    shown = (left.action.text, remove.action.text)
    edit = say(tree, tree.root, "edit", *shown, choice=1, text="Action: look", task_id="t1")
    append_mark(run.path / FILE, edit)
    done = treeagent("review", "apply", run.path, "--out", tmp_path / "marked")
    assert done.returncode == 0 and "1 refused actions" in done.stdout and EDITS in done.stdout, done.stderr
    [row] = map(orjson.loads, (tmp_path / "marked" / EDITS).read_bytes().splitlines())
    assert row["prompt"][0]["role"] == "user"
    assert row["completion"] == [{"role": "assistant", "content": "Action: look"}]
    marked = Run.open(tmp_path / "marked")
    first, second = read_trees(marked.trees)
    assert to_record(first) == to_record(next(read_trees(run.trees)))
    assert [below(each).invalid for each in second.root.edges] == [False, True]
    assert len(list(read_as(from_record, marked.episodes))) == len(list(read_as(from_record, run.episodes)))
    assert treeagent("review", "apply", run.path, "--out", tmp_path / "marked").returncode == 2

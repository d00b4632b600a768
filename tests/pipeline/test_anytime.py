"""Success by what a search had spent, by hand."""

import csv
import io
from pathlib import Path

import pytest
from report_sample import TASK

from treeagent.config import load_config
from treeagent.pipeline.folder import Run
from treeagent.pipeline.index import write_trees
from treeagent.pipeline.report.anytime import Moment, Progress, anytime_charts, moments
from treeagent.pipeline.report.chart import data
from treeagent.pipeline.report.gather import progress_of
from treeagent.search.node import Budget, Edge, Node, Spent, Tree
from treeagent.types import Action, State


def plan(*ends: tuple[float, float | None], tokens: int = 10, withheld: bool = True) -> Tree:
    """A plan with one simulation that reaches no end and one for each of ``ends``, given as V and the true return. Each
    simulation costs ``tokens`` tokens, a step and half a second."""
    root = Node(State(TASK, ()))
    tree = Tree(TASK, 0, root, Budget(simulations=1 + len(ends)))
    for place, (value, paid) in enumerate([(0.5, None), *ends]):
        node = Node(State(TASK, ()), value=value, terminated=place > 0, paid=paid if withheld else None)
        reward = None if withheld else paid or 0.0
        root.edges.append(Edge(Action(f"a{place}", f"a{place}"), 0.2, visits=1, reward=reward, child=node))
        tree.order.append(node)
        tree.spent.append(Spent(tokens * (place + 1), place + 1, 0.5 * (place + 1)))
    return tree


def test_what_would_have_been_taken_follows_v_and_what_was_found_follows_the_rewards() -> None:
    told = moments(plan((0.3, 0.0), (0.8, 1.0), (0.7, 0.0), (0.9, 0.5)))
    assert told == [
        Moment(Spent(10, 1, 0.5), False, False),
        Moment(Spent(30, 3, 1.5), True, True),
        Moment(Spent(50, 5, 2.5), True, False),
    ]
    assert [each.taken for each in moments(plan((0.8, 1.0), (0.9, 0.0)), allowed=lambda path: "a1" in str(path))] == [
        False,
        True,
        True,
    ]


def test_a_tree_that_does_not_tell_has_no_moments() -> None:
    old = plan((0.3, 1.0))
    old.spent = []
    assert moments(old) == []
    assert moments(plan((0.3, None))) == []  # its reward was withheld and never recorded
    assert moments(plan((0.3, 1.0), withheld=False))[-1].found


def test_an_end_without_a_verdict_is_found_by_its_outcome() -> None:
    tree = plan((0.5, 1.0), withheld=False)
    tree.root.edges[1].reward, tree.root.edges[1].components = None, {"outcome": 1.0}
    assert [each.found for each in moments(tree)] == [False, True]


def test_a_search_that_broke_off_at_once_counts_as_failed() -> None:
    broken = Tree(TASK, 0, Node(State(TASK, ())), Budget(generated_tokens=5), error="the prompt is too long")
    group = Progress("base mcts", [moments(plan((0.5, 1.0))), moments(broken)], decides=True)
    tokens, *_ = anytime_charts("anytime", "Success by", [group])
    assert [line.points[-1] for line in tokens.lines] == [(20.0, 0.5), (20.0, 0.5)]


def test_a_search_has_also_found_the_ends_at_which_no_simulation_ended() -> None:
    """Lookahead backs up the best path beyond a candidate. The other ends that it examined stay in the tree."""
    tree = plan((0.9, 0.0))
    examined = Node(State(TASK, ()), value=0.1, terminated=True, paid=1.0)
    tree.root.edges.append(Edge(Action("b", "b"), 0.2, reward=None, child=examined))
    assert moments(tree)[-1] == Moment(Spent(20, 2, 1.0), found=True, taken=False)


def test_what_would_have_been_taken_is_unknown_where_replays_choose(tmp_path: Path) -> None:
    for replays in (0, 4):
        config = load_config(None, [f"evaluate.replays={replays}"])
        with Run.create(tmp_path / str(replays), config, resume=False) as run:
            write_trees(run.trees, "evaluate-base-mcts", 0, [plan((0.5, 1.0))])
            [progress] = progress_of(run, [{"policy": "base", "mode": "mcts"}])
        assert progress.decides == (replays == 0)


def test_the_curve_is_the_share_of_tasks_at_each_budget() -> None:
    trees = [plan((0.5, 1.0), tokens=10), plan((0.5, 0.0), (0.6, 1.0), tokens=100)]
    group = Progress("base mcts", [moments(tree) for tree in trees], decides=True)
    tokens, steps, seconds = anytime_charts("anytime", "Success by", [group])
    assert [chart.name for chart in (tokens, steps, seconds)] == ["anytime-tokens", "anytime-steps", "anytime-seconds"]
    assert [line.label for line in tokens.lines] == ["base mcts, taken", "base mcts, found"]
    points = dict(tokens.lines[0].points)
    assert points[10] == 0.0 and points[300] == 1.0
    assert {share for budget, share in points.items() if 21 < budget < 299} == {0.5}
    low, high = tokens.lines[0].band[-1]
    assert low == pytest.approx(0.3424, abs=1e-3) and high == 1.0  # Wilson's interval of 2 of 2
    assert steps.lines[0].points[-1] == (3.0, 1.0) and seconds.lines[0].points[0] == (0.5, 0.0)
    rows = list(csv.DictReader(io.StringIO(data(tokens))))
    assert len(rows) == 120 and rows[0]["series"] == "base mcts, taken"
    assert float(rows[-1]["generated tokens a task"]) == 300 and float(rows[-1]["low"]) == pytest.approx(low)


def test_collected_trees_have_one_curve_and_free_steps_none() -> None:
    tree = plan((0.5, 1.0), withheld=False)
    tree.spent = [each._replace(steps=0) for each in tree.spent]
    charts = anytime_charts("collecting", "Solved by", [Progress("collect", [moments(tree)], decides=False)])
    assert [chart.name for chart in charts] == ["collecting-tokens", "collecting-seconds"]
    assert [line.label for line in charts[0].lines] == ["collect"]

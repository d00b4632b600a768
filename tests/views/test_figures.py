"""Figures of a policy's trees, and the alarms raised by their course, by hand."""

import pytest
from hand_trees import hand_tree, node

from treeagent.pipeline.alarms import alarms, training_alarms
from treeagent.search.node import Tree
from treeagent.types import Task
from treeagent.views.figures import return_spread, tree_figures

GOOD = {
    "success": 0.5,
    "reward": 0.6,
    "reward_std": 0.3,
    "entropy": 1.0,
    "invalid": 0.05,
    "repetition": 0.1,
}


def test_figures_of_one_tree() -> None:
    figures = tree_figures([hand_tree()])
    # Finished paths: A A1 with return 1, C with return 0. Nine tokens were sampled; the sum of their -log μ is 1.86.
    assert figures == pytest.approx(
        {
            "success": 1.0,
            "reward": 0.5,
            "reward_std": 0.5,
            "entropy": 1.86 / 9,
            "invalid": 0.0,
            "repetition": 0.0,
            "steps": 1.5,
            "failed": 0.0,
            "restarts": 0.0,
        }
    )


def test_a_tree_that_finished_nothing_counts_as_no_success_and_no_spread() -> None:
    bare = Tree(Task("bare", "x"), 0, node((1,)), error="crashed")
    figures = tree_figures([hand_tree(), bare])
    assert figures["success"] == 0.5 and figures["failed"] == 0.5
    assert figures["reward"] == 0.5  # a mean over paths; the bare tree has none
    assert return_spread(bare) == 0.0


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"entropy": 0.5, "reward_std": 0.1}, "echo trap"),
        ({"invalid": 0.3}, "format"),
        ({"repetition": 0.5}, "repetition"),
    ],
)
def test_each_sign_raises_its_alarm(changed: dict[str, float], word: str) -> None:
    [sentence] = alarms([GOOD, GOOD | changed])
    assert sentence.startswith(f"{word}: ")


@pytest.mark.parametrize(
    ("last", "why"),
    [
        ({"success": 0.97}, "search solves nearly all"),
        ({"reward_std": 0.1, "reward": 0.8}, "returns within a tree hardly differ"),
        ({}, "search more tasks"),
    ],
)
def test_a_round_that_is_no_better_says_why(last: dict[str, float], why: str) -> None:
    course = [GOOD | {"validation": 0.6}, GOOD | {"validation": 0.7}]
    assert alarms(course) == []
    [sentence] = alarms([*course, GOOD | {"validation": 0.7} | last])
    assert sentence.startswith("plateau: 70% of the validation tasks succeed, 70% before: ") and why in sentence
    assert alarms([GOOD, GOOD | last]) == []  # there was no validation


@pytest.mark.parametrize(
    ("validations", "warned"),
    [
        ([], False),
        ([0.6], False),
        ([0.6, 0.1, 0.31], False),  # it recovered
        ([0.6, 0.7, 0.29], True),
        ([0.1, 0.01], False),  # one or two tasks
        ([0.0, 0.0], False),
    ],
)
def test_an_update_that_loses_half_of_its_success_collapses(validations: list[float], warned: bool) -> None:
    rows = [{"step": float(step), "validation": score} for step, score in enumerate(validations)]
    assert [sentence.split(":")[0] for sentence in training_alarms(rows)] == ["collapse"] * warned

"""Figures of a policy's trees, and the alarms raised by their course, by hand."""

from dataclasses import replace

import pytest
from hand_trees import edge, hand_tree, node

from treeagent.pipeline.alarms import alarms, training_alarms, value_alarms
from treeagent.search.node import Tree
from treeagent.types import Task
from treeagent.views.figures import repetition, return_spread, tree_figures

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


def test_figures_of_nothing_are_none() -> None:
    assert tree_figures([]) == {}


def test_a_tree_that_finished_nothing_counts_as_no_success_and_no_spread() -> None:
    bare = Tree(Task("bare", "x"), 0, node((1,)), error="crashed")
    figures = tree_figures([hand_tree(), bare])
    assert figures["success"] == 0.5 and figures["failed"] == 0.5
    assert figures["reward"] == 0.5  # a mean over paths; the bare tree has none
    assert return_spread(bare) == 0.0


def test_refused_steps_are_counted() -> None:
    tree = hand_tree()
    assert tree.root.edges[1].child is not None
    tree.root.edges[1].child.invalid = True
    assert tree_figures([tree])["invalid"] == pytest.approx(1 / 6)  # of six executed steps


def test_a_thought_is_no_step_of_its_own() -> None:
    """A thought, then a call that ends the task or one that is refused: one step, and half of the steps are refused."""
    refused = edge("jump", (4,), 1, 0.0, node((5,)))
    assert refused.child is not None
    refused.child.invalid = True
    thought = edge("so", (2,), 2, 1.0, node((), edge("go", (3,), 1, 1.0, node((6,), end="terminated"), 1.0), refused))
    thought.action = replace(thought.action, call="")
    figures = tree_figures([Tree(Task("split", "x"), 0, node((1,), thought))])
    assert (figures["steps"], figures["invalid"]) == (1.0, 0.5)


def test_repetition_is_of_three_tokens_said_before_on_the_path() -> None:
    first, again = edge("a", (1, 2, 3, 4), 1, 0, None), edge("b", (1, 2, 3, 9), 1, 0, None)
    assert repetition([first, again]) == 0.25  # 123 is repeated among 123, 234, 123, 239
    assert repetition([first]) == 0.0
    assert repetition([edge("c", (5, 5, 5, 5, 5), 1, 0, None)]) == pytest.approx(2 / 3)
    assert repetition([]) == 0.0


def test_a_steady_course_raises_no_alarm() -> None:
    assert alarms([GOOD]) == []
    assert alarms([GOOD, GOOD | {"reward": 0.7, "entropy": 0.9}]) == []


def test_a_solved_task_is_no_echo_trap() -> None:
    assert alarms([GOOD, GOOD | {"reward": 0.95, "success": 1.0, "entropy": 0.3, "reward_std": 0.05}]) == []


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


def test_a_round_without_a_real_tree_neither_warns_nor_is_the_first() -> None:
    worse = GOOD | {"invalid": 0.5}
    assert alarms([GOOD, {"validation": 0.5}]) == alarms([{}, worse]) == []
    [sentence] = alarms([{}, GOOD, {"validation": 0.5}, worse])
    assert sentence.startswith("format: the share of malformed or refused steps went from 0.05 to 0.50")


@pytest.mark.parametrize(
    ("reward", "success", "warned"),
    [
        (0.62, 0.5, True),  # both are no better
        (0.8, 0.5, False),  # the tasks are learned
        (0.8, 0.44, True),  # one way is always taken, so the mean return rises, but fewer tasks are solved
        (0.5, 1.0, True),
    ],
)
def test_a_narrow_policy_is_an_echo_where_return_or_success_suffer(reward: float, success: float, warned: bool) -> None:
    narrow = GOOD | {"entropy": 0.5, "reward_std": 0.1, "reward": reward, "success": success}
    assert [sentence.split(":")[0] for sentence in alarms([GOOD, narrow])] == ["echo trap"] * warned


@pytest.mark.parametrize(("reward", "warned"), [(0.5, True), (0.6, False)])
def test_returns_that_narrow_and_fall_are_an_echo_though_entropy_stays(reward: float, warned: bool) -> None:
    """This happens if the tasks of each round are new to the policy."""
    narrow = GOOD | {"reward_std": 0.1, "reward": reward}
    assert [sentence.split(":")[0] for sentence in alarms([GOOD, narrow])] == ["echo trap"] * warned


@pytest.mark.parametrize(
    ("norms", "warned"),
    [
        ([2.0, 0.4, 0.02, 0.01, 0.01], False),  # it falls
        ([0.01, 0.01, 0.9], False),  # below 1, where nothing is clipped
        ([0.01, 0.01, 1.1], True),
        ([0.5, 9.0], False),
        ([0.5, 11.0, 0.5, 0.5], True),
        ([5.0], False),
    ],
)
def test_a_gradient_jumps_above_what_was_before(norms: list[float], warned: bool) -> None:
    assert bool(training_alarms([{"grad_norm": norm} for norm in norms])) == warned


@pytest.mark.parametrize(
    ("name", "first", "last", "warned"),
    [
        ("repetition", 0.1, 0.3, False),
        ("repetition", 0.1, 0.31, True),  # at least 0.3
        ("repetition", 0.2, 0.41, True),  # twice as much
        ("repetition", 0.6, 0.79, False),
        ("repetition", 0.6, 0.81, True),  # half of the remaining 0.4 is gone
        ("invalid", 0.0, 0.2, False),
        ("invalid", 0.0, 0.21, True),
        ("invalid", 0.5, 0.76, True),
    ],
)
def test_a_share_that_is_large_at_first_can_still_warn(name: str, first: float, last: float, warned: bool) -> None:
    assert bool(alarms([GOOD | {name: first}, GOOD | {name: last}])) == warned


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


@pytest.mark.parametrize(
    ("explained", "warned"),
    [([1.0], False), ([0.01], False), ([0.009], True), ([0.0, 0.5], False), ([0.0, -0.3], True)],
)
def test_a_value_head_that_explains_nothing_is_warned_of(explained: list[float], warned: bool) -> None:
    assert [sentence.split(":")[0] for sentence in value_alarms(explained)] == ["value head"] * warned


def test_signs_of_one_update() -> None:
    calm = [{"grad_norm": 1.0, "kl": 0.01, "clip_ratio/region_mean": 0.05}] * 5
    assert training_alarms(calm) == []
    wild = [*calm, {"grad_norm": 50.0, "kl": 2.0, "clip_ratio/region_mean": 2.0}]
    assert [sentence.split(":")[0] for sentence in training_alarms(wild)] == ["clipping", "distance", "gradient"]
    assert training_alarms([]) == []

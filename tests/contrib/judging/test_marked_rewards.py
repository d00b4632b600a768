"""Reviewers' verdicts on ends, under weighted rewards."""

from hand_trees import hand_tree

from treeagent.config import load_config
from treeagent.contrib.judging.config import JudgeConfig, RewardsConfig
from treeagent.contrib.judging.reweigh import reweighed
from treeagent.contrib.people.marked import apply_marks
from treeagent.contrib.people.marks import Verdict, deciding, new_mark, state_hash
from treeagent.pipeline.rows import sample_value_rows
from treeagent.search.node import Tree, succeeds


def under(tree: Tree, **weights: float) -> Tree:
    [told] = reweighed([tree], RewardsConfig(weights=weights), {})
    return told


def test_a_label_changes_the_outcome_and_survives_weighing_anew() -> None:
    """The search counted A, A1 as a success. The reviewer marks it as failed, so only the steps are paid: 2 * -0.1."""
    tree = under(hand_tree(), outcome=2.0, steps=-0.1)
    [a, *_] = tree.root.edges
    assert a.child is not None and a.child.edges[0].child is not None
    won = a.child.edges[0]
    end = won.child
    assert end is not None
    mark = new_mark("ada", "failed", state=state_hash(tree.task.id, end.state.messages), shown=("A1",))
    apply_marks(tree, deciding([mark]))
    assert won.components["outcome"] == 0.0 and not succeeds([a, won])
    told = under(tree, outcome=2.0, steps=-0.1)
    [first, *_] = told.root.edges
    assert first.child is not None
    assert abs((first.child.edges[0].reward or 0.0) + 0.1) < 1e-9


def test_people_outrank_the_judge_and_the_tiers() -> None:
    """The search counted A, A1 as a success, and the judge as a hack. A person marks it as solved, and then as
    failed."""
    cases: tuple[tuple[Verdict, float], ...] = (("solved", 1.0), ("failed", 0.0))
    for verdict, worth in cases:
        tree = under(hand_tree(), outcome=1.0)
        [a, *_] = tree.root.edges
        assert a.child is not None
        won = a.child.edges[0]
        end = won.child
        assert end is not None
        won.components = {**won.components, "hacked": 1.0}
        assert not succeeds([a, won])
        mark = new_mark("ada", verdict, state=state_hash(tree.task.id, end.state.messages), shown=("A1",))
        apply_marks(tree, deciding([mark]))
        assert succeeds([a, won]) == bool(worth)
        judge = JudgeConfig(model="judge", items=("Is it right?",))
        for config in (
            RewardsConfig(weights={"outcome": 1.0}),
            RewardsConfig(weights={"judge": 1.0}, judge=judge),
            RewardsConfig(weights={"verdict": 1.0}, judge=judge, tiers=("rule", "judge")),
        ):
            [told] = reweighed([tree], config, {})
            [first, *_] = told.root.edges
            assert first.child is not None and first.child.edges[0].reward == worth


def test_the_order_of_simulations_names_the_copies() -> None:
    tree = hand_tree()
    tree.order = [tree.root.edges[0].child, None]
    told = under(tree, outcome=1.0)
    assert told.order == [told.root.edges[0].child, None]


def test_without_weights_the_environments_own_rewards_come_back() -> None:
    tree = hand_tree()
    back = under(under(tree, outcome=0.5, steps=-0.1))
    for one, two in zip(tree.nodes(), back.nodes(), strict=True):
        for left, right in zip(one.edges, two.edges, strict=True):
            assert left.reward == right.reward
            assert abs(left.value_sum - right.value_sum) < 1e-9


def test_targets_of_weighted_returns_are_clipped_to_the_heads_range() -> None:
    config = load_config(None, ["rewards.weights={outcome=0.5, steps=-0.1}"])
    rows = sample_value_rows([under(hand_tree(), outcome=0.5, steps=-0.1)], config, (0.0, 1.0))
    targets = {round(each, 6) for row in rows for each in row.value_targets}
    assert targets == {0.0, 0.3}  # a success after two steps is worth 0.3 in every state on its way

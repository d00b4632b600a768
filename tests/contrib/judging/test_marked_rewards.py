"""Trees under weighted rewards."""

from hand_trees import hand_tree

from treeagent.config import load_config
from treeagent.contrib.judging.config import RewardsConfig
from treeagent.contrib.judging.reweigh import reweighed
from treeagent.pipeline.rows import sample_value_rows
from treeagent.search.node import Tree


def under(tree: Tree, **weights: float) -> Tree:
    [told] = reweighed([tree], RewardsConfig(weights=weights), {})
    return told


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

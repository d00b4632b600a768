"""Figures of the horizon sweep, from searches of a ladder whose probabilities are known."""

import asyncio
from itertools import product

import pytest

from benchmarks.horizon import Ladder, climbs, words_taken
from benchmarks.ladders import LADDERS
from benchmarks.sweep import WAYS, at_rung, of_trees, sampled
from treeagent.config import load_config
from treeagent.pipeline.recipes import find_recipe
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.node import Tree, finished_paths
from treeagent.search.searcher import make_search
from treeagent.types import Task

HEIGHT = 2


def climbed(tasks: int) -> list[Tree]:
    """Trees of fifty sampled episodes of two steps each, whose rewards are known after execution. V makes no errors."""
    ladder = Ladder(HEIGHT, 0.3, 0.0, thoughts=False)
    config = SearchConfig(method="best_of_n", limits=Limits(generated_tokens=1000))
    named = [Task(f"ladder {number}", "climb") for number in range(tasks)]
    trees = asyncio.run(make_search(ladder, ladder, config, ladder).run(named, range(tasks)))
    for tree in trees:
        for path, node in tree.walk():
            if node.final:
                path[-1].own_reward = float(climbs(tree.task, words_taken(node.state)))
    return trees


def won(tree: Tree, episodes: int) -> list[bool]:
    outcomes = {id(path[-1].child): path[-1].outcome for path in finished_paths(tree)}
    return [outcomes.get(id(node)) == 1.0 for node in tree.order[:episodes]]


def test_the_share_of_sampled_episodes_that_succeed() -> None:
    trees = climbed(20)
    assert [len(tree.order) for tree in trees] == [50] * 20
    for tree in trees:
        assert sampled(tree) == sum(won(tree, 50)) / 50
    # q² = 0.09 with 1,000 episodes: three standard deviations are 0.027.
    assert sum(map(sampled, trees)) / 20 == pytest.approx(0.09, abs=0.027)


def test_success_at_fewer_steps_is_that_of_the_episodes_within_them() -> None:
    trees = climbed(20)
    within = sum(any(won(tree, 25)) for tree in trees) / 20
    figures = of_trees(trees, 0.0)
    assert figures["at 50 steps"] == within < figures["at 400 steps"] == sum(any(won(tree, 50)) for tree in trees) / 20
    assert figures["at 5 s"] == pytest.approx(within, abs=0.1)  # 49 steps of 0.1 s, and little time for the search
    assert figures["value_auc_ends"] > 0.99


@pytest.mark.parametrize("name", LADDERS)
def test_every_rung_has_valid_settings(name: str) -> None:
    ladder = LADDERS[name]
    config = load_config(find_recipe(ladder.recipe), ladder.settings)
    for rung, way in product(ladder.rungs, WAYS.values()):
        at_rung(config, rung, ladder.tokens, ladder.action_tokens, way)

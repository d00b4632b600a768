"""Figures of the horizon sweep, from searches of a ladder whose probabilities are known."""

import asyncio
from itertools import product

import pytest

from benchmarks.horizon import Ladder, climbs, words_taken
from benchmarks.ladders import LADDERS
from benchmarks.sweep import WAYS, at_rung, of_trees, plan_lengths, sampled
from treeagent.config import load_config
from treeagent.envs import make_env
from treeagent.envs.planning import PlanningEnv
from treeagent.envs.planning.planner import Planner
from treeagent.pipeline.recipes import find_recipe
from treeagent.search.config import SearchConfig
from treeagent.search.limits import Limits
from treeagent.search.methods import make_search
from treeagent.search.node import Tree
from treeagent.types import Task

HEIGHT = 2


def climbed(tasks: int) -> list[Tree]:
    """Trees of fifty sampled episodes of two steps each, whose rewards are known after execution. V makes no errors."""
    ladder = Ladder(HEIGHT, 0.3, 0.0, thoughts=False)
    config = SearchConfig(method="best_of_n", limits=Limits(generated_tokens=1000))
    named = [Task(f"ladder {number}", "climb") for number in range(tasks)]
    trees = asyncio.run(make_search(ladder, ladder, config, ladder).run(named, range(tasks)))
    for tree in trees:
        for _, node in tree.walk():
            if node.final:
                node.paid = float(climbs(tree.task, words_taken(node.state)))
    return trees


def won(tree: Tree, episodes: int) -> list[bool]:
    return [node is not None and node.paid == 1.0 for node in tree.order[:episodes]]


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


def test_a_rung_is_evaluated_with_a_limit_of_steps_that_fits_it() -> None:
    ladder = LADDERS["tireworld"]
    config = load_config(find_recipe(ladder.recipe), ladder.settings)
    settings = at_rung(config, ladder.rungs[1], 500, ladder.action_tokens, WAYS["beam"])
    assert settings.environment.options == {**config.environment.options, "size": 3}
    assert settings.environment.max_steps == 12
    assert settings.search.limits == Limits(generated_tokens=500)
    assert settings.search.candidates == WAYS["beam"].search["candidates"]
    assert 2 * settings.search.options["width"] == 500 // (10 * 6)


def test_the_horizon_is_the_planner_s() -> None:
    ladder = LADDERS["tireworld"]
    config = load_config(find_recipe(ladder.recipe), ladder.settings)
    settings = at_rung(config, ladder.rungs[1], 500, ladder.action_tokens, WAYS["greedy"])
    lengths = plan_lengths(settings, range(4, 8), "test")
    env = make_env("planning", settings.environment.options)
    assert isinstance(env, PlanningEnv)
    for task, length in zip(env.tasks("test", 4, 4), lengths, strict=True):
        env.reset(options={"task": task})
        plan = Planner(env.problem).plan(env.visit.state)
        assert plan is not None and length == len(plan) + 1


@pytest.mark.parametrize("name", LADDERS)
def test_every_rung_has_valid_settings(name: str) -> None:
    ladder = LADDERS[name]
    config = load_config(find_recipe(ladder.recipe), ladder.settings)
    for rung, way in product(ladder.rungs, WAYS.values()):
        at_rung(config, rung, ladder.tokens, ladder.action_tokens, way)

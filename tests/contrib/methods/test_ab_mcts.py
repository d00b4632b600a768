"""AB-MCTS: posteriors by hand, and how it distributes simulations."""

import asyncio

import pytest
from toy_search import AllPolicy, Maze, task
from written_world import Written

from treeagent.contrib.methods.ab_mcts import ABMCTS, Gaussian
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.node import Tree
from treeagent.types import Policy, Value


def grown(policy: Policy, world: Written | Maze, value: Value | None = None, seed: int = 0, **settings: object) -> Tree:
    config = SearchConfig(method="ab_mcts", **settings)  # type: ignore[arg-type]
    [tree] = asyncio.run(ABMCTS(policy, world, config, value).run([task()], [seed]))
    return tree


def test_a_gaussian_posterior_by_hand() -> None:
    """From values 1 and 0.5: κ' = ν' = 3, m' = 1.5/3, and ν' τ'² = 0.1 + 2 * 0.25² + 2/3 * 0.75²."""
    after = Gaussian().after([1.0, 0.5])
    assert (after.mean, after.kappa, after.nu) == (0.5, 3.0, 3.0)
    assert after.variance == pytest.approx((0.1 + 0.125 + 0.375) / 3)


def test_most_simulations_go_on_below_the_better_child() -> None:
    """Everything below a is worth 0.9, everything below b 0.1."""
    places = [first + rest for first in "ab" for rest in ("", *"ab", "aa", "ab", "ba", "bb")]
    world = Written(values={place: 0.9 if place[0] == "a" else 0.1 for place in places})
    trees = [grown(AllPolicy("a", "b"), world, world, seed, limits=Limits(simulations=10)) for seed in range(10)]
    visits = {word: sum(e.visits for tree in trees for e in tree.root.edges if e.action.text == word) for word in "ab"}
    assert visits["a"] > 3 * visits["b"]

"""AB-MCTS: posteriors by hand, and how it distributes simulations."""

import asyncio
import statistics

import numpy as np
import pytest
from toy_search import AllPolicy, Maze, TablePolicy, task
from written_world import InOrder, Written, said

from treeagent.contrib.methods.ab_mcts import ABMCTS, Beta, Gaussian
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


def test_a_beta_posterior_by_hand() -> None:
    assert Beta().after([1.0, 0.25]) == Beta(1.75, 1.25)
    assert Beta().after([1.5, -0.5]) == Beta(1.5, 1.5)


@pytest.mark.parametrize(
    ("posterior", "mean", "variance"),
    [
        (Gaussian(0.5, 4.0, 12.0, 0.2), 0.5, 0.2 / 4 * 12 / 10),  # Student's t with 12 degrees of freedom
        (Beta(3.0, 1.0), 0.75, 3 / (16 * 5)),
    ],
)
def test_draws_have_the_posteriors_moments(posterior: Gaussian | Beta, mean: float, variance: float) -> None:
    rng = np.random.default_rng(0)
    draws = [posterior.draw(rng) for _ in range(20_000)]
    assert statistics.fmean(draws) == pytest.approx(mean, abs=0.01)
    assert statistics.pvariance(draws) == pytest.approx(variance, rel=0.05)


@pytest.mark.parametrize("posterior", ["gaussian", "beta"])
def test_most_simulations_go_on_below_the_better_child(posterior: str) -> None:
    """Everything below a is worth 0.9, everything below b 0.1."""
    places = [first + rest for first in "ab" for rest in ("", *"ab", "aa", "ab", "ba", "bb")]
    world = Written(values={place: 0.9 if place[0] == "a" else 0.1 for place in places})
    settings = {"posterior": posterior}
    trees = [
        grown(AllPolicy("a", "b"), world, world, seed, limits=Limits(simulations=10), options=settings)
        for seed in range(10)
    ]
    visits = {word: sum(e.visits for tree in trees for e in tree.root.edges if e.action.text == word) for word in "ab"}
    assert visits["a"] > 3 * visits["b"]


def test_nothing_continues_an_end() -> None:
    """Every word ends the episode. Each is generated once, and the search is over when no word is left."""
    words = {"a": 0.5, "b": 0.5}
    tree = grown(TablePolicy(words), Maze(1.0, 0.0), limits=Limits(generated_tokens=10_000))
    assert tree.root.exhausted
    assert {said(path) for path, _ in tree.walk() if path} == set(words)
    assert tree.budget.environment_steps == 2


def test_a_call_sampled_again_is_no_second_child_and_costs_no_second_step() -> None:
    tree = grown(InOrder("a"), Written(), limits=Limits(simulations=6))
    assert all(len(node.edges) <= 1 for node in tree.nodes())
    assert tree.budget.environment_steps == tree.budget.simulations == 6
    assert tree.budget.proposals >= 6

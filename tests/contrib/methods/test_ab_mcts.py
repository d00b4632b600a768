"""AB-MCTS: posteriors by hand, and how it distributes simulations."""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_search import AllPolicy, Maze, TablePolicy, after, begin, calls, digest, task
from written_world import InOrder, Written, said

from treeagent.contrib.methods.ab_mcts import ABMCTS, Beta, Gaussian
from treeagent.search.config import SearchConfig
from treeagent.search.growth import Growth
from treeagent.search.limits import Limits
from treeagent.search.node import Tree
from treeagent.search.puct import ValueRange
from treeagent.types import Action, Policy, Proposal, State, Task, Transition, Value

returns = st.lists(st.floats(0.0, 1.0), max_size=8)


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


@pytest.mark.parametrize("prior", [Gaussian(), Beta()])
def test_without_returns_a_posterior_is_its_prior(prior: Gaussian | Beta) -> None:
    assert prior.after([]) == prior


@given(returns, returns)
def test_returns_may_come_at_once_or_one_after_the_other(first: Sequence[float], second: Sequence[float]) -> None:
    at_once, then = Gaussian().after([*first, *second]), Gaussian().after(first).after(second)
    assert (then.mean, then.variance) == pytest.approx((at_once.mean, at_once.variance))
    together, apart = Beta().after([*first, *second]), Beta().after(first).after(second)
    assert (apart.alpha, apart.beta) == pytest.approx((together.alpha, together.beta))


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


def test_the_posterior_and_the_seed_decide() -> None:
    def of(seed: int, posterior: str) -> str:
        settings = {"posterior": posterior}
        return digest(grown(TablePolicy({"a": 0.6, "b": 0.4}), Maze(0.1, 0.0), seed=seed, options=settings))

    assert of(1, "gaussian") == of(1, "gaussian")
    assert len({of(1, "gaussian"), of(2, "gaussian"), of(1, "beta")}) == 3


class Listed(AllPolicy):
    """Gives the priors of its words, as a policy does that scores the actions which an environment lists."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        told = await super().propose(states, count, seeds)
        return [replace(each, priors=(1 / len(each.actions),) * len(each.actions)) for each in told]


def test_more_simulations_in_flight_than_listed_actions() -> None:
    tree = grown(Listed("a", "b"), Maze(0.3, 0.0), limits=Limits(simulations=24), leaves=5)
    assert tree.error == "" and tree.budget.simulations == 24
    assert all(len(node.edges) <= 2 for node in tree.nodes())


@dataclass(frozen=True)
class Stairs:
    """Each of four steps pays 0.25."""

    async def reset(self, task: Task) -> State:
        return begin(task, "down")

    async def step(self, state: State, action: Action) -> Transition:
        return Transition(after(state, action, "up"), 0.25, terminated=len(calls(state)) == 3)


def test_the_range_holds_every_return_where_rewards_come_before_the_end() -> None:
    """The simulations return 0.25, 0.5, 0.75 and 1. The greatest Q is 0.625, their mean."""
    ranges = list[ValueRange]()

    class Watched(ABMCTS):
        async def grow(self, growth: Growth) -> None:
            ranges.append(growth.value_range)
            await super().grow(growth)

    search = Watched(AllPolicy("a"), Stairs(), SearchConfig(Limits(simulations=4)))
    [tree] = asyncio.run(search.run([task()], [0]))
    assert tree.root.edges[0].value == 0.625
    assert ranges == [ValueRange(0.25, 1.0)]

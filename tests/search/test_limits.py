"""When a search stops: at the first limit reached, after the batch that is then under way."""

import asyncio
import time
from dataclasses import asdict, dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tangle import PlaceValue, Tangle, configs, seeds, worlds
from toy_search import HashValue, Maze, TablePolicy, grow, task

from treeagent.search.config import SearchConfig
from treeagent.search.limits import Limits
from treeagent.search.methods import make_search
from treeagent.search.node import Budget
from treeagent.types import Action, State, Transition

ENDLESS = Maze(end_share=0.0, limit_share=0.0)
WORDS = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}
TASKS = [task(f"task {number}") for number in range(4)]

some_limits = st.builds(
    Limits,
    simulations=st.integers(1, 40),
    environment_steps=st.none() | st.integers(1, 30),
    generated_tokens=st.none() | st.integers(1, 200),
)


@given(configs, some_limits, worlds, seeds)
def test_no_simulation_begins_beyond_a_limit(config: SearchConfig, limits: Limits, world: Tangle, seed: int) -> None:
    """A simulation begins when all but ``leaves - 1`` of those before it have ended, and no limit was reached then."""
    search = make_search(TablePolicy(WORDS), world, replace(config, limits=limits), PlaceValue())
    for tree in asyncio.run(search.run(TASKS, range(seed, seed + 4))):
        for ended, spent in enumerate(tree.spent[: -config.leaves], 1):
            before = Budget(ended, environment_steps=spent.steps, generated_tokens=spent.tokens)
            assert limits.share(before) < 1
        assert limits.share(tree.budget) >= 1 or tree.root.exhausted
        assert tree.budget.simulations <= (limits.simulations or 0)


@pytest.mark.parametrize("leaves", [1, 4])
def test_each_limit_is_exceeded_by_one_batch_at_most(leaves: int) -> None:
    """A batch has at most ``leaves`` steps, and as many draws of three candidates with two tokens each."""
    for limits, name, share in (
        (Limits(simulations=23), "simulations", 0),
        (Limits(environment_steps=23), "environment_steps", leaves - 1),
        (Limits(generated_tokens=101), "generated_tokens", 6 * leaves - 1),
    ):
        config = SearchConfig(limits=limits, candidates=3, leaves=leaves)
        [tree] = grow(TablePolicy(WORDS), ENDLESS, config, HashValue())
        limit: int = asdict(limits)[name]
        assert limit <= getattr(tree.budget, name) <= limit + share


def test_a_search_of_seconds_stops_soon() -> None:
    """Steps take 2 ms, the limit is 0.1 s per tree, and the batch under way is finished. Two trees share the time."""

    @dataclass(frozen=True)
    class Slow(Maze):
        async def step(self, state: State, action: Action) -> Transition:
            await asyncio.sleep(0.002)
            return await super().step(state, action)

    started = time.perf_counter()
    trees = grow(TablePolicy(WORDS), Slow(0.0, 0.0), SearchConfig(limits=Limits(seconds=0.1)), tasks=TASKS[:2])
    elapsed = time.perf_counter() - started
    assert all(tree.budget.environment_steps <= 150 for tree in trees)
    for tree in trees:
        assert tree.budget.seconds >= 0.1
        assert tree.budget.simulations > 0
    assert sum(tree.budget.seconds for tree in trees) <= elapsed


def test_the_share_is_that_of_the_limit_which_is_nearest() -> None:
    """4 of 10 simulations and 30 of 60 tokens are spent: a half. With 4 more in flight it would be 60 tokens and 8
    simulations."""
    limits, spent = Limits(simulations=10, generated_tokens=60), Budget(simulations=4, generated_tokens=30)
    assert limits.share(spent) == 0.5
    assert limits.share(spent, in_flight=4) == 1.0
    assert Limits(simulations=10).share(Budget(), in_flight=4) == 0.4


def test_some_limit_is_required() -> None:
    with pytest.raises(ValidationError, match="no limit is set: set simulations, "):
        Limits()


@pytest.mark.parametrize("name", ["simulations", "environment_steps", "generated_tokens", "seconds"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_of_nothing_is_refused(name: str, value: int) -> None:
    with pytest.raises(ValidationError, match=name):
        Limits(**{name: value})

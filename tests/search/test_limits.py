"""When a search stops: at the first limit reached, after the batch that is then under way."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tangle import PlaceValue, Tangle, configs, seeds, worlds
from toy_search import AllPolicy, HashValue, Maze, TablePolicy, grow, task

from treeagent.search.config import SearchConfig
from treeagent.search.limits import Limits
from treeagent.search.mcts import Search
from treeagent.search.node import Budget, Tree
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
def test_no_batch_begins_beyond_a_limit(config: SearchConfig, limits: Limits, world: Tangle, seed: int) -> None:
    """Each tree stops by itself. Before its last batch it had not spent what it has spent at the end."""
    spent: list[list[Budget]] = []
    search = Search(TablePolicy(WORDS), world, replace(config, limits=limits), PlaceValue())

    def note(trees: Sequence[Tree]) -> None:
        spent.append([replace(tree.budget, seconds=0.0) for tree in trees])

    trees = asyncio.run(search.run(TASKS, range(seed, seed + 4), note))
    for place, tree in enumerate(trees):
        course = [batch[place] for batch in spent]
        stopped = course.index(course[-1])
        assert not any(limits.reached(before) for before in course[:stopped])
        assert all(after == course[stopped] for after in course[stopped:])
        assert limits.reached(course[-1]) or tree.root.exhausted
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


@dataclass(frozen=True)
class Costly(Maze):
    """Every step replays three further steps."""

    end_share: float = 0.0
    limit_share: float = 0.0

    async def step(self, state: State, action: Action) -> Transition:
        return replace(await super().step(state, action), cost=4)


def test_replayed_steps_count() -> None:
    """Each simulation costs 4 steps. After three, 12 of 10 are spent."""
    [tree] = grow(TablePolicy(WORDS), Costly(), SearchConfig(limits=Limits(environment_steps=10)))
    assert (tree.budget.environment_steps, tree.budget.simulations) == (12, 3)


def test_the_first_limit_counts() -> None:
    limits = Limits(simulations=5, environment_steps=50, generated_tokens=5000, seconds=60.0)
    [tree] = grow(TablePolicy(WORDS), ENDLESS, SearchConfig(limits=limits))
    assert tree.budget.simulations == 5


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


def test_an_exhausted_tree_needs_no_limit_of_simulations() -> None:
    [tree] = grow(AllPolicy("a", "b"), Maze(1.0, 0.0), SearchConfig(limits=Limits(environment_steps=100)))
    assert tree.root.exhausted
    assert tree.budget.simulations == 2


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


def test_a_search_that_might_never_end_needs_a_limit_of_simulations() -> None:
    with pytest.raises(ValidationError, match=r"limits\.simulations is not set"):
        SearchConfig(limits=Limits(environment_steps=10), skip_exhausted=False)

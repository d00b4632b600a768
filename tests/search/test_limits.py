"""When a search stops: at the first limit reached, after the batch that is then under way."""

import asyncio
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from test_mcts import configs, seeds, worlds
from toy_search import HashValue, Maze, TablePolicy, task

from treeagent.search.config import Limits, SearchConfig
from treeagent.search.node import Budget
from treeagent.search.searcher import make_search

WORDS = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}
TASKS = [task(f"task {number}") for number in range(4)]

some_limits = st.builds(
    Limits,
    simulations=st.integers(1, 40),
    environment_steps=st.none() | st.integers(1, 30),
    generated_tokens=st.none() | st.integers(1, 200),
)


@given(configs, some_limits, worlds, seeds)
def test_no_simulation_begins_beyond_a_limit(config: SearchConfig, limits: Limits, world: Maze, seed: int) -> None:
    """A simulation begins when all but ``leaves - 1`` of those before it have ended, and no limit was reached then."""
    search = make_search(TablePolicy(WORDS), world, replace(config, limits=limits), HashValue())
    for tree in asyncio.run(search.run(TASKS, range(seed, seed + 4))):
        for ended, spent in enumerate(tree.spent[: -config.leaves], 1):
            before = Budget(ended, environment_steps=spent.steps, generated_tokens=spent.tokens)
            assert limits.share(before) < 1
        assert limits.share(tree.budget) >= 1 or tree.root.exhausted
        assert tree.budget.simulations <= (limits.simulations or 0)


def test_the_share_is_that_of_the_limit_which_is_nearest() -> None:
    """4 of 10 simulations and 30 of 60 tokens are spent: a half. With 4 more in flight it would be 60 tokens and 8
    simulations."""
    limits, spent = Limits(simulations=10, generated_tokens=60), Budget(simulations=4, generated_tokens=30)
    assert limits.share(spent) == 0.5
    assert limits.share(spent, in_flight=4) == 1.0
    assert Limits(simulations=10).share(Budget(), in_flight=4) == 0.4

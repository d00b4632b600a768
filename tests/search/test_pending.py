"""Trees continue independently while the steps of other trees are pending."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from toy_search import HashValue, Maze, TablePolicy, digest, share, task

from treeagent.seams import names
from treeagent.search.config import METHODS, Limits, SearchConfig
from treeagent.search.searcher import make_search
from treeagent.types import Action, Estimate, Proposal, State, Transition

WORDS = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}
ALL = [name for name in names("search.method", METHODS) if name not in ("critic", "rollouts")]
TASKS = [task(f"task {number}") for number in range(6)]


@dataclass(frozen=True)
class Tail(Maze):
    """A tenth of the steps take 10 ms, most others take one turn of the event loop, and the rest take no time."""

    async def step(self, state: State, action: Action) -> Transition:
        luck = share("wait", state.messages[-1].content, action.text)
        if luck < 0.7:
            await asyncio.sleep(0.01 if luck < 0.1 else 0.0)
        return await super().step(state, action)


@pytest.mark.parametrize("method", ALL)
def test_trees_do_not_depend_on_what_steps_take(method: str) -> None:
    config = SearchConfig(Limits(simulations=12), method=method, leaves=2)
    fast, slow = (
        asyncio.run(make_search(TablePolicy(WORDS), maze, config, HashValue()).run(TASKS, range(6)))
        for maze in (Maze(0.2, 0.1), Tail(0.2, 0.1))
    )
    assert [digest(tree) for tree in slow] == [digest(tree) for tree in fast]


@dataclass(frozen=True)
class Last(Maze):
    """The first step of the first task ends only after ``steps`` steps of the others."""

    made: Counter[str] = field(default_factory=Counter[str])
    steps: int = 0

    async def step(self, state: State, action: Action) -> Transition:
        self.made[state.task.id] += 1
        while state.task == TASKS[0] and sum(self.made.values()) <= self.steps:
            await asyncio.sleep(0.001)
        return await super().step(state, action)


def test_no_tree_waits_for_the_slow_step_of_another() -> None:
    """Five trees make eight steps each while the sixth makes its first."""
    config = SearchConfig(Limits(simulations=8))
    world = Last(end_share=0.0, limit_share=0.0, steps=40)
    run = make_search(TablePolicy(WORDS), world, config, HashValue()).run(TASKS, range(6))
    trees = asyncio.run(asyncio.wait_for(run, timeout=30))
    assert [tree.budget.simulations for tree in trees] == [8] * 6


@dataclass
class SlowValue(HashValue):
    """Takes ``seconds`` per call, for any number of states."""

    seconds: float = 0.0

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        await asyncio.sleep(self.seconds)
        return await super().estimate(states)


class Staggered(Maze):
    async def step(self, state: State, action: Action) -> Transition:
        await asyncio.sleep(0.002 * int(state.task.id[-1]))
        return await super().step(state, action)


def test_a_slow_model_is_asked_for_all_trees_together() -> None:
    """Steps take up to 10 ms and the model 0.2 s. The model waits for all of them, as if steps took no time."""
    values, config = [HashValue(), SlowValue(seconds=0.2)], SearchConfig(Limits(simulations=3))
    for world, value in zip((Maze(0.0, 0.0), Staggered(0.0, 0.0)), values, strict=True):
        asyncio.run(make_search(TablePolicy(WORDS), world, config, value).run(TASKS, range(6)))
    assert values[0].calls == values[1].calls


@dataclass
class Served(TablePolicy):
    """A policy on a server on which some trees wait longer than others."""

    concurrent: bool = True
    in_flight: int = 0
    most: int = 0

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        assert len({state.task.id for state in states}) == 1
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await asyncio.sleep(0.002 * int(states[0].task.id[-1]))
        self.in_flight -= 1
        return await super().propose(states, count, seeds)


@pytest.mark.parametrize("method", ALL)
def test_each_tree_asks_a_server_by_itself(method: str) -> None:
    config, served = SearchConfig(Limits(simulations=8), method=method, leaves=2), Served(WORDS)
    alone, together = (
        asyncio.run(make_search(policy, Staggered(0.2, 0.1), config, HashValue()).run(TASKS, range(6)))
        for policy in (served, TablePolicy(WORDS))
    )
    assert [digest(tree) for tree in alone] == [digest(tree) for tree in together]
    assert served.most >= 6

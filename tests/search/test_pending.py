"""Trees continue independently while the steps of other trees are pending."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from toy_search import HashValue, Maze, TablePolicy, digest, share, task

from treeagent.seams import names
from treeagent.search.config import METHODS, SearchConfig
from treeagent.search.limits import Limits
from treeagent.search.methods import make_search
from treeagent.search.node import Tree
from treeagent.search.values import MixedValue, RolloutValue
from treeagent.types import Action, Estimate, Proposal, State, Transition

WORDS = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}
ALL = [name for name in names("search.method", METHODS) if name != "critic"]
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
@pytest.mark.parametrize("estimate_all", [False, True])
def test_trees_do_not_depend_on_what_steps_take(method: str, estimate_all: bool) -> None:
    config = SearchConfig(Limits(simulations=12), method=method, leaves=2, estimate_all=estimate_all)
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


def test_an_error_of_the_policy_cancels_pending_steps() -> None:
    given_up = list[str]()

    class Endless(Maze):
        async def step(self, state: State, action: Action) -> Transition:
            if state.task == TASKS[0]:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    given_up.append(state.task.id)
                    raise
            return await super().step(state, action)

    class Failing(TablePolicy):
        calls = 0

        async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
            self.calls += 1
            if self.calls > 3:
                raise ConnectionError("the server is gone")
            return await super().propose(states, count, seeds)

    search = make_search(Failing(WORDS), Endless(0.0, 0.0), SearchConfig(Limits(simulations=20)), HashValue())
    started = time.perf_counter()
    with pytest.raises(ConnectionError):
        asyncio.run(search.run(TASKS, range(6)))
    assert given_up == [TASKS[0].id]
    assert time.perf_counter() - started < 30


def test_a_step_that_ends_in_time_while_a_model_answers_is_not_late() -> None:
    """A step in a thread ends once the policy is called, within its time limit. The policy call then blocks the event
    loop for longer than that limit."""
    asked, ended = threading.Event(), threading.Event()

    def in_thread() -> None:
        assert asked.wait(10)
        ended.set()

    class Threads(Maze):
        async def step(self, state: State, action: Action) -> Transition:
            if state.task == TASKS[0] and not ended.is_set():
                await asyncio.to_thread(in_thread)
            return await super().step(state, action)

    class Local(TablePolicy):
        calls = 0

        async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
            self.calls += 1
            if self.calls == 2:
                asked.set()
                assert ended.wait(10)
                time.sleep(0.6)
            return await super().propose(states, count, seeds)

    config = SearchConfig(Limits(simulations=8), step_seconds=0.5)
    trees = asyncio.run(make_search(Local(WORDS), Threads(0.0, 0.0), config).run(TASKS, range(6)))
    assert [(tree.error, tree.budget.simulations) for tree in trees] == [("", 8)] * 6


class Panic(BaseException):
    """The exception of a library written in Rust that panics."""


@pytest.mark.parametrize("kind", [Panic, asyncio.CancelledError])
def test_a_step_that_raises_no_exception_ends_the_search_too(kind: type[BaseException]) -> None:
    class Panicking(Maze):
        async def step(self, state: State, action: Action) -> Transition:
            if state.task == TASKS[0]:
                raise kind
            return await super().step(state, action)

    search = make_search(TablePolicy(WORDS), Panicking(0.0, 0.0), SearchConfig(Limits(simulations=8)), HashValue())
    with pytest.raises(kind):
        asyncio.run(asyncio.wait_for(search.run(TASKS, range(6)), timeout=10))


def test_trees_share_the_time_of_slow_steps() -> None:
    started = time.perf_counter()
    config = SearchConfig(Limits(simulations=6))
    trees = asyncio.run(make_search(TablePolicy(WORDS), Staggered(0.0, 0.0), config, HashValue()).run(TASKS, range(6)))
    elapsed = time.perf_counter() - started
    assert 0.06 <= sum(tree.budget.seconds for tree in trees) <= elapsed
    for tree in trees:
        times = [spent.seconds for spent in tree.spent]
        assert times == sorted(times) and times[0] > 0 and times[-1] == tree.budget.seconds


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


def test_rollouts_of_one_tree_do_not_wait_for_those_of_another() -> None:
    config, policies = SearchConfig(Limits(simulations=8)), (Served(WORDS), TablePolicy(WORDS))
    values = [MixedValue((RolloutValue(each, Staggered(0.2, 0.1), max_steps=4),), (1.0,)) for each in policies]
    alone, together = (
        asyncio.run(make_search(policy, Staggered(0.2, 0.1), config, value).run(TASKS, range(6)))
        for policy, value in zip(policies, values, strict=True)
    )
    assert [digest(tree) for tree in alone] == [digest(tree) for tree in together]
    assert [value.concurrent for value in values] == [True, False]
    served = policies[0]
    assert isinstance(served, Served) and served.most >= 6


@dataclass
class Waiting(TablePolicy):
    """A server that answers the first task only when all other trees have finished, as reported by the batches."""

    concurrent: bool = True
    simulations: int = 0
    told: list[int] = field(default_factory=list[int])

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        while states[0].task == TASKS[0] and sum(self.told) < self.simulations:
            await asyncio.sleep(0.001)
        return await super().propose(states, count, seeds)

    def on_batch(self, trees: Sequence[Tree]) -> None:
        self.told = [tree.budget.simulations for tree in trees]


def test_batches_end_while_a_server_is_asked() -> None:
    """Otherwise the progress would stand still, and ``limits.seconds`` would end no tree."""
    policy, config = Waiting(WORDS, simulations=40), SearchConfig(Limits(simulations=8))
    run = make_search(policy, Maze(0.0, 0.0), config).run(TASKS, range(6), policy.on_batch)
    trees = asyncio.run(asyncio.wait_for(run, timeout=10))
    assert policy.told == [8] * 6
    assert all(tree.spent[0].seconds < tree.spent[-1].seconds == tree.budget.seconds for tree in trees)


class Forgetful(Maze):
    """Its steps return nothing, as those of a method without a return statement."""

    async def step(self, state: State, action: Action) -> Transition:
        return cast("Transition", None)


@pytest.mark.parametrize(("trees", "leaves"), [(1, 1), (2, 1), (1, 2)])
def test_a_step_without_a_result_fails_and_is_not_waited_for(trees: int, leaves: int) -> None:
    """The same error is raised if other steps are pending beside it."""
    config = SearchConfig(Limits(simulations=8), leaves=leaves, widening=0)
    run = make_search(TablePolicy(WORDS), Forgetful(), config).run(TASKS[:trees], range(trees))
    with pytest.raises(AttributeError, match="NoneType"):
        asyncio.run(asyncio.wait_for(run, timeout=10))

"""Leaf values by rollouts and as mixtures, by hand and in a search, and the effect of a critic on a search."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st
from toy_search import (
    AllPolicy,
    ConstantValue,
    Corridor,
    HashValue,
    Maze,
    TablePolicy,
    act,
    after,
    begin,
    calls,
    task,
)

from treeagent.contrib.methods.rollouts import Rollouts, RolloutValue
from treeagent.search.config import Limits, SearchConfig
from treeagent.types import Action, Estimate, Proposal, State, Transition, Value

WORDS = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}
CELL = begin(task(), "cell 2")


def states(count: int) -> list[State]:
    return [begin(task(f"task {number}"), f"task {number}") for number in range(count)]


def estimate(value: Value, *asked: State) -> list[Estimate]:
    return list(asyncio.run(value.estimate(asked)))


def test_a_rollout_by_hand() -> None:
    """Two steps to the right pay 1 at the second."""
    walk = RolloutValue(AllPolicy("right"), Corridor(), value=ConstantValue(9.0))
    assert estimate(walk, CELL) == [Estimate(1.0, (1,), environment_steps=2, generated_tokens=2)]
    assert estimate(replace(walk, discount=0.5), CELL) == [Estimate(0.5, (1,), 2, 2)]
    assert estimate(walk, CELL, CELL) == [Estimate(1.0, (1,), 2, 2)] * 2
    assert estimate(walk) == []


@dataclass(frozen=True)
class Toll:
    """Every step pays 0.25 and costs three environment steps. An episode has ``limit`` steps at
    most."""

    limit: int = 3

    async def reset(self, task: object) -> State:
        return CELL

    async def step(self, state: State, action: Action) -> Transition:
        truncated = len(calls(state)) + 1 >= self.limit
        return Transition(after(state, action, "on"), reward=0.25, truncated=truncated, cost=3)


@dataclass(frozen=True)
class Dear:
    """V = 0.5, at a cost of four environment steps and five tokens."""

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        return [Estimate(0.5, (8, 9), 4, 5) for _ in states]


@given(st.builds(Maze, end_share=st.floats(0, 0.6)), st.permutations(range(5)))
def test_equal_states_give_equal_rollouts_in_any_company(maze: Maze, order: list[int]) -> None:
    value = RolloutValue(TablePolicy(WORDS), maze, value=HashValue())
    asked = states(5)
    together = estimate(value, *asked)
    assert estimate(value, *(asked[place] for place in order)) == [together[place] for place in order]
    assert [estimate(value, state) for state in asked] == [[each] for each in together]
    again = replace(asked[0], snapshot="another place", key=None)
    assert estimate(value, again, asked[0]) == [together[0]] * 2


@dataclass(frozen=True)
class Forgetful:
    """A policy that cannot read a conversation with ``steps`` actions."""

    steps: int

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [
            Proposal((3,), (), "too long") if len(calls(state)) >= self.steps else Proposal((3,), (act("go"),) * count)
            for state in states
        ]


def test_a_mixture_with_the_head_by_hand() -> None:
    """1/4 of the return 1 and 3/4 of the head's 0.5, with the head's context and the first error."""
    walk = RolloutValue(AllPolicy("right"), Corridor(), value=Dear(), weight=0.25)
    assert estimate(walk, CELL, CELL) == [Estimate(0.625, (8, 9), 2, 2)] * 2
    assert estimate(replace(walk, value=ConstantValue(0.5)), CELL) == [Estimate(0.625, (1,), 2, 2)]
    unread = replace(walk, policy=Forgetful(0), dynamics=Toll())
    assert estimate(unread, CELL) == [Estimate(0.5, (8, 9), 4, 5, "too long")]


def test_a_search_with_rollouts_knows_the_goal_from_its_first_visit() -> None:
    config = SearchConfig(limits=Limits(simulations=4), options={"weight": 0.5})
    [tree] = asyncio.run(Rollouts(AllPolicy("right"), Corridor(), config, ConstantValue(0.5)).run([task()], [0]))
    assert tree.root.value == 0.75
    assert tree.budget.estimates and tree.budget.environment_steps > tree.budget.simulations

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
    after,
    begin,
    calls,
    task,
)

from treeagent.contrib.methods.rollouts import Rollouts, RolloutValue
from treeagent.search.config import Limits, SearchConfig
from treeagent.types import Action, Estimate, State, Transition, Value

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


class Toll:
    """Episodes of three steps without a reward, each of which costs three environment steps."""

    async def reset(self, task: object) -> State:
        return CELL

    async def step(self, state: State, action: Action) -> Transition:
        truncated = len(calls(state)) + 1 >= 3
        return Transition(after(state, action, "on"), reward=None, truncated=truncated, cost=3)


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


def test_an_end_without_a_reward_is_worth_what_the_head_says_there() -> None:
    walk = RolloutValue(AllPolicy("right"), Toll(), value=Dear())
    assert estimate(walk, CELL) == [Estimate(0.5, (1,), 3 * 3 + 4, 3 + 5)]


def test_a_search_with_rollouts_knows_the_goal_from_its_first_visit() -> None:
    config = SearchConfig(limits=Limits(simulations=4))
    [tree] = asyncio.run(Rollouts(AllPolicy("right"), Corridor(), config, ConstantValue(0.5)).run([task()], [0]))
    assert tree.root.value == 1.0
    assert tree.budget.estimates and tree.budget.environment_steps > tree.budget.simulations

"""Leaf values by rollouts and as mixtures, by hand and in a search, and the effect of a critic on a search."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
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
    grow,
    task,
)

from treeagent.search.config import SearchConfig
from treeagent.search.limits import Limits
from treeagent.search.mcts import Search
from treeagent.search.values import MixedValue, RolloutValue
from treeagent.types import Action, Estimate, Message, Policy, Proposal, State, Transition, UserError, Value

WORDS = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}
STEPS = {"left": 0.4, "right": 0.6}
CELL = begin(task(), "cell 2")


def states(count: int) -> list[State]:
    return [begin(task(f"task {number}"), f"task {number}") for number in range(count)]


def estimate(value: Value, *asked: State) -> list[Estimate]:
    return list(asyncio.run(value.estimate(asked)))


def test_a_rollout_by_hand() -> None:
    """Two steps to the right pay 1 at the second."""
    walk = RolloutValue(AllPolicy("right"), Corridor(), max_steps=6, value=ConstantValue(9.0))
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
class Withheld(Toll):
    """A toll that the search does not see."""

    async def step(self, state: State, action: Action) -> Transition:
        return replace(await Toll.step(self, state, action), reward=None)


@pytest.mark.parametrize(("dynamics", "paid"), [(Toll(), 0.25), (Withheld(), 0.0)])
def test_a_state_knows_what_was_paid_on_the_way(dynamics: Toll, paid: float) -> None:
    config = SearchConfig(limits=Limits(simulations=9), bootstrap=True)  # the limit is not the task's
    for at_the_end, search in ((0.0, replace(config, bootstrap=False)), (3 * paid, config)):
        [tree] = grow(TablePolicy({"a": 0.6, "b": 0.4}), dynamics, search, Dear())
        assert {node.state.paid for path, node in tree.walk() if len(path) == 3} == {at_the_end}
        assert all(node.state.paid == len(path) * paid for path, node in tree.walk() if len(path) < 3)


@dataclass(frozen=True)
class Dear:
    """V = 0.5, at a cost of four environment steps and five tokens."""

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        return [Estimate(0.5, (8, 9), 4, 5) for _ in states]


@pytest.mark.parametrize(("limit", "max_steps", "steps"), [(3, 9, 3), (9, 2, 2)])
def test_a_rollout_that_stops_short_is_closed_by_the_value(limit: int, max_steps: int, steps: int) -> None:
    """Σ_t γ^t 0.25 + γ^T 0.5, both at the rollout's own limit and at a limit of the environment that is not the task's.
    Process rewards are left out."""
    toll = RolloutValue(AllPolicy("pay"), Toll(limit), max_steps=max_steps, discount=0.5, bootstrap=True)
    paid = {2: 0.375, 3: 0.4375}[steps]
    assert estimate(toll, CELL) == [Estimate(paid, (1,), 3 * steps, steps)]
    [closed] = estimate(replace(toll, value=Dear()), CELL)
    assert closed == Estimate(paid + 0.5**steps * 0.5, (1,), 3 * steps + 4, steps + 5)


class Thinking:
    """Proposes a thought where a turn begins, and "right" after a thought."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [Proposal((1,), (act("right"),) if state.messages[-1].partial else (THOUGHT,)) for state in states]


THOUGHT = Action("hm", "", "hm", (5,), (-1.0,))


class ThoughtCorridor(Corridor):
    """A corridor in which a thought is a step of its own, at no cost."""

    async def step(self, state: State, action: Action) -> Transition:
        if action.call:
            return await super().step(replace(state, messages=state.messages[:-1]), action)
        said = Message("assistant", action.text, action.token_ids, partial=True)
        return Transition(replace(state, messages=(*state.messages, said)), cost=0)


@pytest.mark.parametrize(("max_steps", "reward"), [(2, 1.0), (1, 0.0)])
def test_a_thought_of_its_own_takes_no_step_of_a_rollout(max_steps: int, reward: float) -> None:
    """Two steps to the right pay 1 at the second, and each step is two actions of a token each."""
    walk = RolloutValue(Thinking(), ThoughtCorridor(), max_steps=max_steps)
    assert estimate(walk, CELL) == [Estimate(reward, (1,), max_steps, 2 * max_steps)]


@given(st.builds(Maze, end_share=st.floats(0, 0.6)), st.permutations(range(5)))
def test_equal_states_give_equal_rollouts_in_any_company(maze: Maze, order: list[int]) -> None:
    value = RolloutValue(TablePolicy(WORDS), maze, max_steps=5, value=HashValue())
    asked = states(5)
    together = estimate(value, *asked)
    assert estimate(value, *(asked[place] for place in order)) == [together[place] for place in order]
    assert [estimate(value, state) for state in asked] == [[each] for each in together]
    again = replace(asked[0], snapshot="another place", key=None)
    assert estimate(value, again, asked[0]) == [together[0]] * 2


@dataclass
class Batches:
    """Counts the states in each call of a policy."""

    policy: Policy
    batches: list[int] = field(default_factory=list[int])

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        self.batches.append(len(states))
        return await self.policy.propose(states, count, seeds)


def test_all_rollouts_advance_together() -> None:
    policy = Batches(AllPolicy("right"))
    near = after(CELL, act("right"), "cell 3")
    estimate(RolloutValue(policy, Corridor(), max_steps=9), CELL, near, CELL)
    assert policy.batches == [3, 2]


@dataclass(frozen=True)
class Breaks:
    """Pays 0.25 per step. In task 1 alone, the third step raises, hangs or pays NaN."""

    how: str

    async def reset(self, task: object) -> State:
        return CELL

    async def step(self, state: State, action: Action) -> Transition:
        reward = 0.25
        if len(calls(state)) == 2 and state.task.id == "task 1":
            if self.how == "fails":
                raise RuntimeError("the server is gone")
            if self.how == "hangs":
                await asyncio.sleep(60)
            if self.how == "is silent":
                return Transition(after(state, action, "?"), reward=None, truncated=True, error="hm")
            reward = math.nan
        return Transition(after(state, action, "on"), reward=reward, truncated=len(calls(state)) == 3)


@pytest.mark.parametrize(
    ("how", "error", "steps"),
    [
        ("fails", "RuntimeError: the server is gone", 2),
        ("hangs", "TimeoutError", 2),
        ("nan", "the environment gave the reward nan", 3),
    ],
)
def test_an_environment_that_fails_ends_its_own_rollout(how: str, error: str, steps: int) -> None:
    """The rollout keeps the rewards until then and, if there is a value function, adds its value of the state
    reached."""
    value = RolloutValue(AllPolicy("go"), Breaks(how), max_steps=9, step_seconds=0.2)
    sound, broken, too = estimate(value, *states(3))
    assert sound == too == Estimate(1.0, (1,), 4, 4)
    assert broken == Estimate(0.5, (1,), steps, 3, error)
    [closed] = estimate(replace(value, value=ConstantValue(0.25)), states(2)[1])
    assert (closed.value, closed.error) == (0.75, error)


def test_a_step_that_nobody_can_tell_stops_its_rollout_where_it_stands() -> None:
    value = RolloutValue(AllPolicy("go"), Breaks("is silent"), max_steps=9)
    sound, stopped = estimate(value, *states(2))
    assert sound == Estimate(1.0, (1,), 4, 4)
    assert stopped == Estimate(0.5, (1,), 3, 3)
    [closed] = estimate(replace(value, value=ConstantValue(0.25)), states(2)[1])
    assert (closed.value, closed.error) == (0.75, "")


def test_a_rollout_without_rewards_needs_a_value() -> None:
    maze = Maze(end_share=0.6, withheld=True)
    blind = RolloutValue(AllPolicy("a"), maze, max_steps=9, discount=0.5)
    with pytest.raises(UserError, match="rewards are withheld: give RolloutValue a value"):
        estimate(blind, *states(1))
    for state in states(8):
        [told] = estimate(replace(blind, value=HashValue()), state)
        steps = told.environment_steps
        reached, over = state, False
        for _ in range(steps):
            transition = asyncio.run(maze.step(reached, act("a")))
            reached, over = transition.state, transition.terminated or transition.truncated
        # At an end V takes the place of the withheld reward, and is discounted like it.
        assert told.value == pytest.approx(0.5 ** (steps - over) * HashValue.of(reached))


@dataclass(frozen=True)
class Forgetful:
    """A policy that cannot read a conversation with ``steps`` actions."""

    steps: int

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [
            Proposal((3,), (), "too long") if len(calls(state)) >= self.steps else Proposal((3,), (act("go"),) * count)
            for state in states
        ]


def test_a_state_that_cannot_be_read_is_told_and_one_on_the_way_is_a_limit() -> None:
    value = RolloutValue(Forgetful(2), Toll(9), max_steps=9)
    assert estimate(value, CELL) == [Estimate(0.5, (3,), 6, 2)]
    long = after(after(CELL, act("go"), "on"), act("go"), "on")
    assert estimate(value, long) == [Estimate(0.0, (3,), error="too long")]


class Silent:
    """A value whose requests fail."""

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        return [Estimate(0.0, error="down", failed=True) for _ in states]


@dataclass(frozen=True)
class Stumbling:
    """A policy whose request fails after ``steps`` actions, or for further candidates at the first state."""

    steps: int
    asked: list[int] = field(default_factory=list[int])

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        self.asked.append(len(calls(states[0])))
        fails = self.asked[-1] >= self.steps or self.asked.count(0) > 1
        return [Proposal((3,), error="down", failed=True) if fails else Proposal((3,), (act("go"),) * count)]


def test_an_estimate_that_wants_a_failed_request_has_failed() -> None:
    [mixed] = estimate(MixedValue([ConstantValue(1.0), Silent()], [0.5, 0.5]), CELL)
    assert (mixed.failed, mixed.error) == (True, "down")
    for policy, value in ((AllPolicy("go"), Silent()), (Stumbling(2), ConstantValue(1.0)), (Stumbling(0), None)):
        [stopped] = estimate(RolloutValue(policy, Toll(9), max_steps=4, value=value), CELL)
        assert (stopped.failed, stopped.error) == (True, "down")
    [ended] = estimate(RolloutValue(AllPolicy("go"), Toll(3), max_steps=9, value=Silent()), CELL)
    assert ended == Estimate(0.75, (1,), 9, 3)  # it needs no V(s)


class RootAlone(Silent):
    """A value whose requests fail below the root."""

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        failed = await super().estimate(states)
        return [each if calls(state) else Estimate(0.5) for state, each in zip(states, failed, strict=True)]


def test_a_node_without_a_value_is_a_dead_end_unless_its_return_is_known() -> None:
    """Each step of ``Toll`` pays 0.25, and the third ends the episode. ``Withheld`` pays it in secret."""
    config = SearchConfig(Limits(simulations=4), candidates=1)
    [paid] = asyncio.run(Search(AllPolicy("go"), Toll(1), config, RootAlone()).run([task()], [0]))
    [edge] = paid.root.edges
    assert edge.child is not None and edge.child.final and (edge.value, edge.child.unknown) == (0.25, False)
    [secret] = asyncio.run(Search(AllPolicy("go"), Withheld(1), config, RootAlone()).run([task()], [0]))
    [edge] = secret.root.edges
    assert edge.child is not None and edge.child.unknown and not edge.child.final
    assert (edge.visits, secret.budget.simulations, secret.error) == (0, 1, "")
    [empty] = asyncio.run(Search(AllPolicy("go"), Toll(), config, Silent()).run([task()], [0]))
    assert (empty.error, empty.root.edges, empty.root.unknown) == ("down", [], True)


def test_a_mixed_value_by_hand() -> None:
    """1/4 of 1 and 3/4 of 0.5, with the first context that exists, the sum of the costs, and the first error."""
    blind, dear = ConstantValue(1.0), Dear()
    assert estimate(MixedValue([blind, dear], [0.25, 0.75]), CELL, CELL) == [Estimate(0.625, (8, 9), 4, 5)] * 2
    walk = RolloutValue(AllPolicy("right"), Corridor(), max_steps=6)
    assert estimate(MixedValue([dear, walk], [0.5, 0.5]), CELL) == [Estimate(0.75, (8, 9), 6, 7)]
    assert estimate(MixedValue([walk, dear], [0.0, 1.0]), CELL) == [Estimate(0.5, (1,), 6, 7)]
    unread = RolloutValue(Forgetful(0), Toll(), max_steps=6)
    assert estimate(MixedValue([dear, unread], [0.5, 0.5]), CELL) == [Estimate(0.25, (8, 9), 4, 5, "too long")]


@dataclass
class Ledger:
    """Records the estimates of a value function."""

    value: Value
    told: list[Estimate] = field(default_factory=list[Estimate])

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        told = await self.value.estimate(states)
        self.told += told
        return told


def test_a_tree_pays_for_its_rollouts() -> None:
    ledger = Ledger(RolloutValue(TablePolicy(WORDS), Maze(), max_steps=6))
    [tree] = grow(TablePolicy(WORDS), Maze(), SearchConfig(limits=Limits(simulations=12), widening=0), ledger)
    own = sum(1 for _ in tree.nodes()) - 1
    played = sum(each.environment_steps for each in ledger.told)
    assert tree.budget.environment_steps == own + played
    assert played > own
    drawn = 2 * 4 * tree.budget.proposals
    assert tree.budget.generated_tokens == drawn + sum(each.generated_tokens for each in ledger.told)


@pytest.mark.parametrize("value", [None, HashValue()])
def test_an_ended_state_is_not_played_on(value: Value | None) -> None:
    """Only its context is read, and ``value`` estimates it."""
    policy = TablePolicy(WORDS)
    ended = replace(states(1)[0], ended=True)
    judged = 0.0 if value is None else HashValue.of(ended)
    assert estimate(RolloutValue(policy, Maze(), max_steps=9, value=value), ended) == [Estimate(judged, (1, 7))]

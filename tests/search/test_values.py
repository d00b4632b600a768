"""Leaf values by rollouts and as mixtures, by hand and in a search, and the effect of a critic on a search."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import fmean

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
    Treasure,
    act,
    after,
    begin,
    calls,
    digest,
    grow,
    task,
)

from treeagent.search.baselines import BestOfN
from treeagent.search.config import SearchConfig
from treeagent.search.growth import Growth, add_candidates
from treeagent.search.limits import Limits
from treeagent.search.mcts import Search
from treeagent.search.node import Node, Tree, finished_paths, path_return
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


@dataclass(frozen=True)
class Dreamt(Toll):
    """A toll of four steps in a world model, whose answer to the third step cannot be read if ``silent``."""

    limit: int = 4
    silent: bool = False

    async def step(self, state: State, action: Action) -> Transition:
        error = "?" * (self.silent and len(calls(state)) == 2)
        return replace(await Toll.step(self, state, action), origin="imagined", cost=0, error=error)


def test_the_imagined_steps_of_rollouts_count() -> None:
    """The rollout from the root takes 4 steps. The first simulation takes 1 and a rollout of 3, the second 1 and 2.
    That is 11, which exceeds 10."""
    config = SearchConfig(limits=Limits(environment_steps=10))
    [tree] = grow(AllPolicy("pay"), Dreamt(), config, RolloutValue(AllPolicy("pay"), Dreamt(), max_steps=9))
    budget = tree.budget
    assert (budget.simulations, budget.imagined_steps, budget.environment_steps, budget.unreadable) == (2, 11, 0, 0)
    rollout = RolloutValue(AllPolicy("pay"), Dreamt(silent=True), max_steps=9)
    [mixed] = estimate(MixedValue([rollout, rollout], [0.5, 0.5]), CELL)
    assert (mixed.value, mixed.imagined_steps, mixed.unreadable) == (0.5, 6, 2)


@dataclass(frozen=True)
class Unjudged(Toll):
    """A toll whose judge gives no verdict on the end."""

    async def step(self, state: State, action: Action) -> Transition:
        paid = await Toll.step(self, state, action)
        return replace(paid, reward=None if paid.truncated else 0.25, outcome=0.25)


def test_a_rollout_without_a_verdict_keeps_the_rewards_before_its_end() -> None:
    """V(s) replaces the reward of the end, and is 0 without a value."""
    rollout = RolloutValue(AllPolicy("pay"), Unjudged(), max_steps=9)
    assert [each.value for each in estimate(rollout, CELL)] == [0.5]
    assert [each.value for each in estimate(replace(rollout, value=ConstantValue(0.125)), CELL)] == [0.625]


@dataclass(frozen=True)
class Whole:
    """V of a head that predicts 1 for the whole episode: what was paid on the way is subtracted."""

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        return [Estimate(1.0 - state.paid, (8,)) for state in states]


def test_an_end_without_a_verdict_is_worth_the_predicted_outcome_once() -> None:
    """0.5 was paid before the end, so V of the end adds the other 0.5 of the outcome."""
    [tree] = grow(AllPolicy("pay"), Unjudged(), SearchConfig(limits=Limits(simulations=4)), Whole())
    [path] = finished_paths(tree)
    assert path_return(path) == 1.0
    rollout = RolloutValue(AllPolicy("pay"), Unjudged(), max_steps=9, value=Whole())
    assert [each.value for each in estimate(rollout, CELL)] == [1.0]


def test_many_rollouts_come_to_the_value_of_the_policy() -> None:
    """Compared with the exact value of the walk: the rollouts of 1600 tasks have a standard error of at most 0.0125."""

    @lru_cache
    def exact(cell: int, left: int) -> float:
        if cell in (0, 4) or not left:
            return float(cell == 4)
        return sum(chance * exact(cell + move, left - 1) for move, chance in ((-1, 0.4), (1, 0.6)))

    walk = RolloutValue(TablePolicy(STEPS), Corridor(), max_steps=9)
    told = estimate(walk, *(begin(task(f"walk {number}"), "cell 2") for number in range(1600)))
    assert fmean(each.value for each in told) == pytest.approx(exact(2, 6), abs=0.0375)
    assert 0.5 < exact(2, 6) < 0.7
    assert all(each.generated_tokens == 2 * each.environment_steps for each in told)


@given(st.builds(Maze, end_share=st.floats(0, 0.6)), st.permutations(range(5)))
def test_equal_states_give_equal_rollouts_in_any_company(maze: Maze, order: list[int]) -> None:
    value = RolloutValue(TablePolicy(WORDS), maze, max_steps=5, value=HashValue())
    asked = states(5)
    together = estimate(value, *asked)
    assert estimate(value, *(asked[place] for place in order)) == [together[place] for place in order]
    assert [estimate(value, state) for state in asked] == [[each] for each in together]
    again = replace(asked[0], snapshot="another place", key=None)
    assert estimate(value, again, asked[0]) == [together[0]] * 2


def test_other_states_and_seeds_give_other_rollouts() -> None:
    policy = TablePolicy(WORDS)
    state = states(1)[0]
    other_seed = replace(state, task=replace(state.task, seed=1))
    asked = [state, other_seed, begin(task("task 1"), "task 0"), begin(task("task 0"), "task 1")]
    estimate(RolloutValue(policy, Treasure(), max_steps=4), *asked)
    assert len({seed for _, seed in policy.asked}) == 4 * 4
    estimate(RolloutValue(policy, Treasure(), max_steps=4, seed=1), *asked)
    assert len({seed for _, seed in policy.asked}) == 2 * 4 * 4


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


class RootAlone(Silent):
    """A value whose requests fail below the root."""

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        failed = await super().estimate(states)
        return [each if calls(state) else Estimate(0.5) for state, each in zip(states, failed, strict=True)]


def test_a_failed_request_for_further_candidates_keeps_those_that_there_are() -> None:
    """The root's second request fails, which ends the search. Its first edge goes on to the end of the episode."""
    [tree] = asyncio.run(BestOfN(Stumbling(9), Toll(2), SearchConfig(Limits(simulations=3))).run([task()], [0]))
    assert (tree.error, tree.root.ended, tree.budget.simulations) == ("down", False, 1)
    [path] = finished_paths(tree)
    assert path_return(path) == 0.5


def test_a_dead_end_of_a_failed_request_gets_no_edges_from_another_one() -> None:
    """Simulations in parallel may ask for candidates of the same node."""
    growth, node = Growth(Tree(task(), 0, Node(CELL))), Node(CELL)
    add_candidates(growth, node, Proposal((3,), error="down", failed=True), 1)
    add_candidates(growth, node, Proposal((3,), (act("go"),)), 1)
    assert node.unknown and not node.edges
    assert growth.tree.budget.generated_tokens == 1


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


def test_a_tree_of_rollouts_depends_on_its_seed_alone() -> None:
    value = RolloutValue(TablePolicy(WORDS), Maze(), max_steps=6)
    config = SearchConfig(limits=Limits(simulations=10))
    tasks = [task(f"task {number}") for number in range(4)]
    batch = grow(TablePolicy(WORDS), Maze(), config, value, tasks)
    for tree, each in zip(batch, tasks, strict=True):
        [alone] = grow(TablePolicy(WORDS), Maze(), config, value, [each])
        assert digest(tree) == digest(alone)


@pytest.mark.parametrize("value", [None, HashValue()])
def test_an_ended_state_is_not_played_on(value: Value | None) -> None:
    """Only its context is read, and ``value`` estimates it."""
    policy = TablePolicy(WORDS)
    ended = replace(states(1)[0], ended=True)
    judged = 0.0 if value is None else HashValue.of(ended)
    assert estimate(RolloutValue(policy, Maze(), max_steps=9, value=value), ended) == [Estimate(judged, (1, 7))]


def test_search_never_plays_on_from_an_end() -> None:
    ledger = Ledger(RolloutValue(TablePolicy(STEPS), Corridor(), max_steps=9, value=HashValue()))
    [tree] = grow(TablePolicy(STEPS), Corridor(), SearchConfig(limits=Limits(simulations=20)), ledger)
    ends = [node for node in tree.nodes() if node.ended]
    assert len(ends) > 5
    for node in ends:
        assert node.value == HashValue.of(node.state)

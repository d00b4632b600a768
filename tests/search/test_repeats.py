"""Steps that lead back to a state of their own path."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from toy_search import AllPolicy, after, begin, calls, grow, plain, task

from treeagent.search.chains import BestOfN
from treeagent.search.config import SearchConfig
from treeagent.search.limits import Limits
from treeagent.search.node import Node, Tree
from treeagent.search.record import from_record, to_record
from treeagent.types import Action, Estimate, State, Task, Transition, UserError
from treeagent.views.values import ValueTargetConfig, state_outcome


class Hall:
    """Walk from cell 0 to cell ``goal``, in at most 30 steps. Each step can be undone."""

    def __init__(self, goal: int = 7) -> None:
        self.goal = goal

    async def reset(self, task: Task) -> State:
        return replace(begin(task, "0"), key="0 cell 0")

    async def step(self, state: State, action: Action) -> Transition:
        moves = {"left": -1, "right": 1, "look": 0}
        cell = max(int(state.messages[-1].content) + moves[str(action.call)], 0)
        steps, done = len(calls(state)) + 1, cell == self.goal
        reached = replace(after(state, action, str(cell)), key=f"{steps} cell {cell}")
        return Transition(reached, reward=float(done), terminated=done, truncated=not done and steps == 30)


class Sure:
    """V(s) is 0.9 everywhere."""

    def __init__(self) -> None:
        self.estimated = list[State]()

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        self.estimated += states
        return [Estimate(0.9, (1,)) for _ in states]


POLICY = AllPolicy("left", "right", "look")


def config(*, prune: bool, simulations: int = 40) -> SearchConfig:
    return SearchConfig(limits=Limits(simulations=simulations), candidates=3, widening=0, prune_repeats=prune)


def repeats(tree: Tree) -> list[Node]:
    return [node for node in tree.nodes() if node.repeat]


def found(tree: Tree) -> bool:
    return any(node.terminated for node in tree.nodes())


def test_nothing_grows_beyond_a_repeated_state() -> None:
    value = Sure()
    [tree] = grow(POLICY, Hall(), config(prune=True), value)
    assert {node.state.place for node in repeats(tree)} >= {"cell 0", "cell 1"}
    for path, node in tree.walk():
        places = [each.state.place for each in tree.states(path)]
        assert node.repeat == (node.state.place in places[:-1])
        assert not (node.repeat and node.edges)
        assert node.value == (0.0 if node.repeat else 0.9) or node.ended
    assert not any(state is node.state for node in repeats(tree) for state in value.estimated)


def test_search_reaches_a_goal_that_circles_hide() -> None:
    [circles], [straight] = (grow(POLICY, Hall(), config(prune=prune), Sure()) for prune in (False, True))
    assert not repeats(circles)
    assert (found(circles), found(straight)) == (False, True)


def test_chains_go_in_circles() -> None:
    search = BestOfN(POLICY, Hall(1), replace(config(prune=True, simulations=4), candidates=1), Sure())
    [tree] = asyncio.run(search.run([task()], [0]))
    assert any(node.edges for node in repeats(tree))


def test_the_record_keeps_which_states_are_repeats() -> None:
    [tree] = grow(POLICY, Hall(), config(prune=True), Sure())
    assert plain(from_record(to_record(tree))) == plain(tree)
    assert repeats(from_record(to_record(tree)))


def test_an_environment_without_keys_is_refused() -> None:
    class Nameless(Hall):
        async def reset(self, task: Task) -> State:
            return replace(await super().reset(task), key=None)

    with pytest.raises(UserError, match="prune_repeats"):
        grow(POLICY, Nameless(), config(prune=True), Sure())


def test_a_repeat_is_no_target_of_v() -> None:
    """From cell 0 the first simulation goes left, which leads back, and the second right, to V = 0.9."""
    [tree] = grow(POLICY, Hall(), config(prune=True, simulations=2), Sure())
    assert [(edge.visits, edge.value) for edge in tree.root.edges] == [(1, 0.0), (1, pytest.approx(0.9)), (0, 0.0)]
    assert state_outcome(tree.root, (), ValueTargetConfig(target="lambda", lambda_=1.0)) == pytest.approx(0.9)

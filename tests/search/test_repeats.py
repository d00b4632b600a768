"""Steps that lead back to a state of their own path."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from toy_search import AllPolicy, after, begin, calls, grow, task

from treeagent.search.config import SearchConfig
from treeagent.search.decide import best_path
from treeagent.search.gumbel import is_explored
from treeagent.search.limits import Enough, Limits
from treeagent.search.methods import make_search
from treeagent.search.node import Node, Tree, path_return
from treeagent.types import Action, Estimate, State, Task, Transition, UserError
from treeagent.views.pairs import PairConfig, compared_siblings
from treeagent.views.values import ValueTargetConfig, state_outcome


class Hall:
    """Walk from cell 0 to cell ``goal``, in at most 30 steps, each of which costs ``price`` and can be undone."""

    def __init__(self, goal: int = 7, price: float = 0.0) -> None:
        self.goal, self.price = goal, price

    async def reset(self, task: Task) -> State:
        return replace(begin(task, "0"), place="cell 0")

    async def step(self, state: State, action: Action) -> Transition:
        moves = {"left": -1, "right": 1, "look": 0}
        cell = max(int(state.messages[-1].content) + moves[str(action.call)], 0)
        steps, done = len(calls(state)) + 1, cell == self.goal
        reached = replace(after(state, action, str(cell)), place=f"cell {cell}")
        reward = float(done) - self.price
        return Transition(reached, reward=reward, terminated=done, truncated=not done and steps == 30)


class Sure:
    """V(s) is the same everywhere."""

    def __init__(self, value: float = 0.9) -> None:
        self.value, self.estimated = value, list[State]()

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        self.estimated += states
        return [Estimate(self.value, (1,)) for _ in states]


POLICY = AllPolicy("left", "right", "look")


def test_where_every_step_costs_a_circle_is_no_better_than_a_failure() -> None:
    """A failure takes 30 steps and returns -30; the goal is seven steps away."""
    config = SearchConfig(limits=Limits(simulations=400), widening=0, candidates=3, prune_repeats=True)
    hall = Hall(price=1.0)
    [tree] = asyncio.run(make_search(POLICY, hall, config, enough=Enough(-30.0, 0.0)).run([task()], [0]))
    pruned = [path_return(path) for path, node in tree.walk() if node.repeat]
    assert pruned and set(pruned) == {-30.0}
    assert [edge.action.call for edge in best_path(tree)] == ["right"] * 7
    pairs = list(compared_siblings(tree, PairConfig()))
    assert pairs and all(chosen.action.call == "right" for _, _, chosen, _ in pairs)


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


@pytest.mark.parametrize("method", ["mcts", "gumbel"])
def test_no_decision_leads_back(method: str) -> None:
    """A step costs 0.1, so that the first step back has the greatest return of all paths."""
    settings = replace(config(prune=True), method=method)
    [tree] = grow(POLICY, Hall(price=0.1), settings, Sure(-0.5), noise=False)
    left, right, _ = tree.root.edges
    assert left.child is not None
    assert left.child.value <= -0.5
    assert [tree.may_prefer(edge) for edge in tree.root.edges] == [False, True, False]
    assert is_explored(left) is False
    for decision in ("visits", "value", "leaf"):
        path = best_path(tree, decision)
        assert path[0] is right
        assert not any(node.repeat for node in tree.states(path))


def test_an_environment_without_keys_is_refused() -> None:
    class Nameless(Hall):
        async def reset(self, task: Task) -> State:
            return replace(await super().reset(task), place=None)

    with pytest.raises(UserError, match="prune_repeats"):
        grow(POLICY, Nameless(), config(prune=True), Sure())


def test_a_repeat_is_no_target_of_v() -> None:
    """From cell 0 the first simulation goes left, which leads back, and the second right, to V = 0.9."""
    [tree] = grow(POLICY, Hall(), config(prune=True, simulations=2), Sure())
    assert [(edge.visits, edge.value) for edge in tree.root.edges] == [(1, 0.0), (1, pytest.approx(0.9)), (0, 0.0)]
    assert state_outcome(tree.root, (), ValueTargetConfig(target="lambda", lambda_=1.0)) == pytest.approx(0.9)

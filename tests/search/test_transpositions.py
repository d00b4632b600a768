"""What a state that equals one seen before in its tree takes from it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from tangle import PlaceValue, Tangle
from toy_search import AllPolicy, Corridor, HashValue, TablePolicy, act, after, begin, grow, plain, task

from treeagent.search.config import SearchConfig
from treeagent.search.growth import Growth
from treeagent.search.limits import Limits
from treeagent.search.mcts import Search
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, Proposal, State, Task, Transition


@dataclass(frozen=True)
class Grid:
    """Right and down from a corner, without end: every place but those at the edge is reached in several orders."""

    keyed: bool = True

    async def reset(self, task: Task) -> State:
        return begin(task, "0 0")

    async def step(self, state: State, action: Action) -> Transition:
        right, down = map(int, state.messages[-1].content.split())
        moved = f"{right + (action.call == 'right')} {down + (action.call == 'down')}"
        reached = after(state, action, moved)
        return Transition(reached if self.keyed else replace(reached, key=None))


class Stopping(TablePolicy):
    """Its turns end with one token, 0."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        drawn = await super().propose(states, count, seeds)
        return [replace(each, actions=tuple(map(stopped, each.actions))) for each in drawn]


def stopped(action: Action) -> Action:
    return replace(action, token_ids=(*action.token_ids[:-1], 0))


def searched(transpositions: str, world: Grid) -> Tree:
    config = SearchConfig(limits=Limits(simulations=60), transpositions=transpositions)  # type: ignore[arg-type]
    [tree] = grow(Stopping({"right": 0.5, "down": 0.5}), world, config, PlaceValue())
    return tree


def test_equal_states_are_evaluated_once() -> None:
    """V depends on the place, so the tree is the same; only the estimates are fewer, one a place."""
    apart, shared = searched("off", Grid()), searched("value", Grid())
    places = {node.state.key for node in apart.nodes()}
    assert (apart.budget.estimates, shared.budget.estimates) == (61, len(places))  # nothing leads back to the root
    assert len(places) < 40
    one, other = plain(apart), plain(shared)
    one["budget"], other["budget"] = {}, {}
    assert one == other


@pytest.mark.parametrize("transpositions", ["value", "statistics"])
def test_states_of_which_nobody_can_tell_share_nothing(transpositions: str) -> None:
    assert searched(transpositions, Grid(keyed=False)).budget.estimates == 60 + 1


def test_statistics_change_what_a_leaf_is_worth() -> None:
    assert plain(searched("statistics", Grid())) != plain(searched("value", Grid()))


def shared(transpositions: str, twin: Node, arrival: Node) -> bool:
    growth = Growth(Tree(task(), 0, twin), seen={"here": twin})
    config = SearchConfig(transpositions=transpositions)  # type: ignore[arg-type]
    return Search(AllPolicy(), Corridor(), config)._share(growth, arrival)


def twin() -> Node:
    """V = 0.9, and returns of 1.5 in three visits and 0.1 in one."""
    edges = [Edge(act("a"), 0.5, visits=3, value_sum=1.5), Edge(act("b"), 0.5, visits=1, value_sum=0.1)]
    state = after(begin(task(), "elsewhere"), stopped(act("come")), "here")
    return Node(state, value=0.9, context_ids=(4, 5), edges=edges)


@pytest.mark.parametrize(("transpositions", "expected"), [("value", 0.9), ("statistics", 0.4)])
def test_what_is_shared_by_hand(transpositions: str, expected: float) -> None:
    """V, or the mean of what search found: (1.5 + 0.1) / 4."""
    arrival = Node(after(begin(task(), "there"), stopped(act("go")), "here"))
    assert shared(transpositions, twin(), arrival)
    assert arrival.value == pytest.approx(expected)
    assert (arrival.context_ids, arrival.edges) == ((4, 5), [])


def test_a_twin_not_searched_yet_shares_its_value() -> None:
    arrival = Node(after(begin(task(), "there"), stopped(act("go")), "here"))
    assert shared("statistics", replace(twin(), edges=[]), arrival)
    assert arrival.value == 0.9


def test_a_state_that_reads_otherwise_is_evaluated_itself() -> None:
    """The same place told in other words: its tokens are not the twin's."""
    reached = after(begin(task(), "there"), stopped(act("go")), "here again")
    assert not shared("value", twin(), Node(replace(reached, key="here")))


def test_a_state_behind_a_turn_that_ended_otherwise_is_evaluated_itself() -> None:
    """Cut off at its limit of tokens, the turn is closed by the prompt, which so adds a token more; and the root adds
    all of the prompt."""
    assert not shared("value", twin(), Node(after(begin(task(), "there"), act("go"), "here")))
    assert not shared("value", twin(), Node(begin(task(), "here")))


def test_trees_share_nothing_with_each_other() -> None:
    """Two tasks in which every key is the same: the second is estimated as if alone."""

    class Alike(Tangle):
        async def reset(self, task: Task) -> State:
            return begin(task, "place 0")

    config = SearchConfig(limits=Limits(simulations=20), transpositions="value")
    together = grow(AllPolicy("a", "b"), Alike(), config, HashValue(), [task("one"), task("two")])
    [alone] = grow(AllPolicy("a", "b"), Alike(), config, HashValue(), [task("two")])
    assert plain(together[1]) == plain(alone)

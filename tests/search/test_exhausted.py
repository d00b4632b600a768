"""An exhausted subtree is not searched again, but counts as if search had kept revisiting it."""

import asyncio
from dataclasses import dataclass

import pytest
from toy_search import AllPolicy, ConstantValue, after, begin, calls, grow, task
from written_world import InOrder, Written

from treeagent.search.config import SearchConfig
from treeagent.search.growth import Growth, backup, mark_exhausted, note_best_returns
from treeagent.search.limits import Limits
from treeagent.search.methods import make_search
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, State, Task, Transition
from treeagent.views import PairConfig, preference_pairs


@dataclass(frozen=True)
class TwoWays:
    """After "a", a second "a" wins at once, and everything else fails after five steps. After "b", everything ends with
    0.5 after five steps."""

    async def reset(self, task: Task) -> State:
        return begin(task, "start")

    async def step(self, state: State, action: Action) -> Transition:
        said = (*calls(state), str(action.call))
        won, over = said == ("a", "a"), len(said) >= 5
        reward = 1.0 if won else 0.5 * (over and said[0] == "b")
        return Transition(after(state, action, " ".join(said)), reward, terminated=won or over)


def fixed(**others: object) -> SearchConfig:
    return SearchConfig(limits=Limits(simulations=64), widening=0, c_init=1.25, **others)  # type: ignore[arg-type]


def test_the_way_to_a_success_keeps_its_value() -> None:
    """Search finds the success below "a", and then only failures beside it. These failures are no reason to prefer
    "b"."""
    [tree] = grow(AllPolicy("a", "b"), TwoWays(), fixed(), ConstantValue(0.5))
    first, second = tree.root.edges
    assert first.value > 0.9
    assert second.value == pytest.approx(0.5)
    chosen = [pair.chosen.text for pair in preference_pairs(tree, PairConfig())]
    assert chosen[0] == "a"


def test_a_success_at_once_keeps_most_visits() -> None:
    """ "a" ends the task with 1 at its first visit. The other 63 simulations go elsewhere and find 0."""

    @dataclass(frozen=True)
    class Shop:
        async def reset(self, task: Task) -> State:
            return begin(task, "start")

        async def step(self, state: State, action: Action) -> Transition:
            said = (*calls(state), str(action.call))
            bought = said == ("a",)
            return Transition(after(state, action, " ".join(said)), float(bought), terminated=bought or len(said) >= 5)

    [tree] = grow(AllPolicy("a", "b", "c"), Shop(), fixed(), ConstantValue(0.5))
    visits = {edge.action.text: edge.visits for edge in tree.root.edges}
    assert visits["a"] >= 60
    assert sum(visits.values()) == 64 + visits["a"] - 1
    assert tree.root.edges[0].value == 1.0


def leaf(value: float, *, terminated: bool = True) -> Node:
    return Node(begin(task(), "end"), value=value, terminated=terminated)


def test_a_revisit_by_hand() -> None:
    """One edge below the root's child ended with reward 0.6. A simulation through its sibling returns 0.2, while a
    revisit of the first edge would have returned 0.6: both edges get a visit. The next simulation returns 0.8, which is
    more, and counts alone. γ = 0.5 halves the return of the step further down."""
    known, other = Edge(act_named("known"), 0.5, reward=0.6, child=leaf(9.0)), Edge(act_named("other"), 0.5)
    middle = Node(begin(task(), "middle"), edges=[known, other])
    above = Edge(act_named("above"), 1.0, child=middle)
    growth = Growth(Tree(task(), 0, Node(begin(task(), "root"), edges=[above]), discount=0.5))
    backup(growth, [above, known])
    known.child.exhausted = True  # type: ignore[union-attr]
    mark_exhausted(growth, [above, known])
    note_best_returns(growth, [above, known])
    assert (known.best, middle.best) == (0.6, 0.6)
    assert not middle.exhausted

    other.child = leaf(0.4, terminated=False)
    backup(growth, [above, other])
    assert (other.visits, other.value_sum) == (1, 0.2)
    assert (known.visits, known.value_sum) == (2, 1.2)
    assert (above.visits, above.value_sum) == (2, 0.6)

    other.child.value = 1.6
    backup(growth, [above, other])
    assert (known.visits, other.visits) == (2, 2)
    assert above.value_sum == pytest.approx(0.6 + 0.4)


def act_named(name: str) -> Action:
    return Action(name, name, "", (1,), (-1.0,))


@pytest.mark.parametrize("method", ["mcts", "gumbel"])
def test_an_unknown_end_is_tried_once(method: str) -> None:
    world = Written(untold=("a",), values={"b": 0.2, "c": 0.3})
    config = SearchConfig(Limits(simulations=20), method, widening=0, candidates=3)
    [tree] = asyncio.run(make_search(InOrder("abc"), world, config, world).run([task()], [1]))
    assert sum(node is not None and node.unknown for node in tree.order) == 1


def test_nothing_is_known_beyond_a_refused_call() -> None:
    refused = Edge(act_named("refused"), 0.5, child=Node(begin(task(), "same"), value=0.9, invalid=True))
    growth = Growth(Tree(task(), 0, Node(begin(task(), "root"), edges=[refused])))
    refused.child.exhausted = True  # type: ignore[union-attr]
    note_best_returns(growth, [refused])
    assert refused.best is None


def test_an_exhausted_subtree_is_known_by_its_best_end() -> None:
    ends = [Edge(act_named(name), 0.5, reward=reward, child=leaf(0.0)) for name, reward in (("a", 0.3), ("b", 0.7))]
    inner = Node(begin(task(), "inner"), edges=ends)
    above = Edge(act_named("above"), 1.0, reward=0.1, child=inner)
    growth = Growth(Tree(task(), 0, Node(begin(task(), "root"), edges=[above])))
    for end in ends:
        end.child.exhausted = True  # type: ignore[union-attr]
        backup(growth, [above, end])
        mark_exhausted(growth, [above, end])
        note_best_returns(growth, [above, end])
    assert inner.exhausted
    assert above.best == pytest.approx(0.8)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_refused_call_beside_a_success_does_not_hide_it(order: tuple[int, int]) -> None:
    """The subtree is known by its success, whichever of the two was tried first."""
    won = Edge(act_named("won"), 0.5, reward=1.0, child=leaf(0.0))
    refused = Edge(act_named("refused"), 0.5, child=Node(begin(task(), "same"), value=0.4, invalid=True))
    inner = Node(begin(task(), "inner"), edges=[won, refused])
    above = Edge(act_named("above"), 1.0, child=inner)
    growth = Growth(Tree(task(), 0, Node(begin(task(), "root"), edges=[above])))
    for index in order:
        edge = inner.edges[index]
        edge.child.exhausted = True  # type: ignore[union-attr]
        backup(growth, [above, edge])
        mark_exhausted(growth, [above, edge])
        note_best_returns(growth, [above, edge])
    assert inner.exhausted
    assert (won.best, above.best, refused.best) == (1.0, 1.0, None)

"""An exhausted subtree is not searched again, but counts as if search had kept revisiting it."""

from dataclasses import dataclass

import pytest
from toy_search import AllPolicy, ConstantValue, after, begin, calls, grow, task

from treeagent.search.config import Limits, SearchConfig
from treeagent.search.mcts import note_best_returns
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.searcher import Growth, backup, mark_exhausted
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
    return SearchConfig(limits=Limits(simulations=64), options={"widening": 0, "c_init": 1.25}, **others)  # type: ignore[arg-type]


def test_the_way_to_a_success_keeps_its_value() -> None:
    """Search finds the success below "a", and then only failures beside it. These failures are no reason to prefer
    "b"."""
    [tree] = grow(AllPolicy("a", "b"), TwoWays(), fixed(), ConstantValue(0.5))
    first, second = tree.root.edges
    assert first.value > 0.9
    assert second.value == pytest.approx(0.5)
    chosen = [pair.chosen.text for pair in preference_pairs(tree, PairConfig())]
    assert chosen[0] == "a"


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

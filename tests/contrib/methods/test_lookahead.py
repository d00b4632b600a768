"""Lookahead searches to its configured depth, takes one action after the other, and takes the most visited actions."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_search import HashValue, Maze, TablePolicy, task
from written_world import InOrder, Written, said, statistics

from treeagent.contrib.methods.lookahead import Lookahead
from treeagent.search.config import SearchConfig
from treeagent.search.decide import most_visited_path
from treeagent.search.limits import Limits
from treeagent.search.node import Edge, Node, Tree, path_return
from treeagent.types import Action, State, Transition


def ahead(world: Written, depth: int, simulations: int = 50, *, leaves: int = 1) -> Tree:
    config = SearchConfig(limits=Limits(simulations=simulations), candidates=2, options={"depth": depth}, leaves=leaves)
    return grown(Lookahead(InOrder("ab"), world, config, world))


def grown(search: Lookahead, seed: int = 0) -> Tree:
    [tree] = asyncio.run(search.run([task()], [seed]))
    return tree


TRAP = Written({"a": 0.9, "b": 0.1, "bb": 0.4}, ends={"aa": 0.0, "ab": 0.2, "ba": 0.0, "bb": 0.8})


def test_one_step_ahead_walks_into_a_trap_that_two_steps_see() -> None:
    near, far = ahead(TRAP, 1), ahead(TRAP, 2)
    assert said(most_visited_path(near)) == "ab"
    assert said(most_visited_path(far)) == "bb"
    assert set(statistics(near)) == {"a", "b", "aa", "ab"}
    assert set(statistics(far)) == {"a", "b", "aa", "ab", "ba", "bb"}


def test_statistics_of_a_lookahead_by_hand() -> None:
    """Two leaves seen from the root back up a-ab (0.2) and b-bb (0.8). Two leaves seen from b are ba (0.0) and bb
    (0.8)."""
    assert statistics(ahead(TRAP, 2)) == {
        "a": (1, 0.2),
        "aa": (0, 0.0),
        "ab": (1, 0.2),
        "b": (3, 1.6),
        "ba": (1, 0.0),
        "bb": (2, 1.6),
    }
    spent = ahead(TRAP, 2).budget
    assert (spent.simulations, spent.environment_steps, spent.proposals, spent.estimates) == (4, 6, 3, 6)


def test_what_was_looked_at_is_not_paid_for_again() -> None:
    """Without ends, the first action sees K + ... + K^d states. Each further action adds only the K^d states that come
    into view."""
    world = Written({"a" * length: length / 10 for length in range(1, 9)})
    for taken, steps in ((1, 2 + 4 + 8), (2, 14 + 8), (3, 22 + 8)):
        tree = ahead(world, 3, 2 * taken)
        assert tree.budget.environment_steps == steps
        assert said(most_visited_path(tree)).startswith("a" * taken)


@pytest.mark.parametrize(("promised", "kept", "again"), [(0.9, 0.6, 1), (0.9, 0.5, 2), (0.2, 0.6, 0)])
def test_second_thoughts_are_what_is_taken(promised: float, kept: float, again: int) -> None:
    """From the root, a-aa looks best at 0.9. From a it turns out that a-ab leads to more than aa does.

    aa then has two visits with a mean of (0.9 + 0.2) / 2 = 0.55, and ab has one. Backing up 0.6 again makes ab the
    better of two equals; 0.5 must be backed up twice. If ab was best from the start, aa has one visit.
    """
    ends = {"aaa": 0.2, "aab": 0.1, "aba": kept, "abb": 0.3, "ba": 0.0, "bb": 0.0}
    world = Written({"aa": promised, "ab": 0.45}, ends=ends)
    assert said(most_visited_path(ahead(world, 2, simulations=4)))[:2] == "ab"  # a limit does not change that
    tree = ahead(world, 2)
    assert said(most_visited_path(tree)) == "aba"
    found = statistics(tree)
    looks = 2 + 2 + 2  # for the candidates of the root, of a and of ab
    assert tree.budget.simulations == tree.root.visits == looks + again
    assert found["aa"][0] == (2 if promised == 0.9 else 1)
    assert found["aba"] == (1 + again + 1, round((1 + again + 1) * kept, 9))


def test_a_limit_ends_the_episode_early() -> None:
    world = Written({"a" * length: length / 10 for length in range(1, 9)})
    tree = ahead(world, 2, 3)  # the third simulation is the first of two from a
    assert tree.budget.simulations == 3
    assert said(most_visited_path(tree)) == "aaa"
    assert statistics(tree)["aaa"] == (1, 0.3)


@pytest.mark.parametrize("limits", [Limits(simulations=40), Limits(environment_steps=20)], ids=str)
def test_what_nobody_can_tell_is_never_taken(limits: Limits) -> None:
    """An unknown state has no return, even if all others are worth less. Stepping to it still counts as a
    simulation."""
    world = Written({"b": -0.5, "bb": -0.5}, ends={"bbb": -1.0}, untold=["a", "ba", "bba"])
    tree = grown(Lookahead(InOrder("ab"), world, SearchConfig(limits=limits, candidates=2), world))
    assert said(most_visited_path(tree)) == "bbb"
    assert tree.budget.simulations == 6
    assert [edge.visits for edge in tree.root.edges] == [0, 3]


def test_where_nothing_can_be_told_the_episode_stops() -> None:
    tree = ahead(Written(untold=["a", "b"]), 1)
    assert (tree.budget.simulations, most_visited_path(tree), tree.error) == (2, [], "")


def test_nothing_is_looked_at_after_an_error() -> None:
    class Broken(Written):
        async def step(self, state: State, action: Action) -> Transition:
            if action.call == "a":
                raise OSError("gone")
            return await super().step(state, action)

    tree = ahead(Broken(), 2, leaves=2)
    assert tree.error == "OSError: gone"
    assert (tree.budget.environment_steps, tree.budget.simulations) == (1, 0)  # b as well as a, but nothing below


@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.builds(Maze, end_share=st.floats(0.1, 0.6), limit_share=st.floats(0.1, 0.4), withheld=st.booleans()),
    st.integers(0, 2**63 - 1),
)
def test_the_most_visited_path_is_the_one_that_was_taken(depth: int, candidates: int, maze: Maze, seed: int) -> None:
    """Checked against a plain loop over the finished tree, which looks equally far ahead and takes the best action."""
    config = SearchConfig(
        limits=Limits(simulations=2000), candidates=candidates, bootstrap=True, options={"depth": depth}
    )  # no two values are equal
    tree = grown(Lookahead(TablePolicy({"a": 0.4, "b": 0.3, "c": 0.3}), maze, config, HashValue()), seed)
    taken: list[Edge] = []
    node = tree.root
    while node.edges:
        taken.append(max(node.edges, key=lambda edge: promise([*taken, edge], depth - 1)))
        node = child(taken[-1])
    assert node.ended
    assert most_visited_path(tree) == taken


def promise(path: list[Edge], left: int) -> float:
    """The highest return within ``left`` more steps."""
    node = child(path[-1])
    if not left or not node.edges:
        return path_return(path)
    return max(promise([*path, edge], left - 1) for edge in node.edges)


def child(edge: Edge) -> Node:
    assert edge.child is not None
    return edge.child

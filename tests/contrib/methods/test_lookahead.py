"""Lookahead searches to its configured depth, takes one action after the other, and takes the most visited actions."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from toy_search import HashValue, Maze, TablePolicy, task
from written_world import InOrder, Written, said, statistics

from treeagent.contrib.methods.lookahead import Lookahead
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.decide import most_visited_path
from treeagent.search.node import Edge, Node, Tree, path_return


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


@given(
    st.integers(1, 3),
    st.integers(1, 4),
    st.builds(Maze, end_share=st.floats(0.1, 0.6), limit_share=st.just(0.0), withheld=st.booleans()),
    st.integers(0, 2**63 - 1),
)
def test_the_most_visited_path_is_the_one_that_was_taken(depth: int, candidates: int, maze: Maze, seed: int) -> None:
    """Checked against a plain loop over the finished tree, which looks equally far ahead and takes the best action."""
    config = SearchConfig(
        limits=Limits(simulations=2000), candidates=candidates, options={"depth": depth}
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

"""Chains: the same tree format, the same accounting, no tree policy."""

import asyncio
from dataclasses import replace

import pytest
from toy_search import (
    AllPolicy,
    ConstantValue,
    HashValue,
    Maze,
    TablePolicy,
    Treasure,
    digest,
    task,
)

from treeagent.search.baselines import roll_out
from treeagent.search.decide import best_path
from treeagent.search.node import path_return
from treeagent.types import Action, State, Transition

WORDS = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}
TASKS = [task(f"task {number}") for number in range(4)]


def test_chains_share_the_root_only() -> None:
    value = HashValue()
    [tree] = asyncio.run(roll_out(TablePolicy(WORDS), Treasure(), TASKS[:1], [5], count=6, value=value))
    assert len(tree.root.edges) == 6  # 6 draws of 4 words: equal draws stay apart
    assert len({edge.action.text for edge in tree.root.edges}) < 6
    ends = [path for path, node in tree.walk() if node.ended]
    assert [len(path) for path in ends] == [4] * 6
    assert all(len(node.edges) == 1 for path, node in tree.walk() if path and not node.ended)
    for path in ends:
        assert [(edge.visits, edge.prior, edge.value) for edge in path] == [(1, 1.0, path[-1].reward)] * 4
        assert path[-1].child is not None
        assert path[-1].child.value == HashValue.of(path[-1].child.state)
    assert value.calls == [6]
    budget = replace(tree.budget, seconds=0.0)
    assert (budget.simulations, budget.environment_steps, budget.proposals, budget.estimates) == (6, 24, 24, 6)
    assert budget.generated_tokens == 48


def test_best_of_n_takes_the_chain_of_highest_return() -> None:
    [tree] = asyncio.run(roll_out(TablePolicy(WORDS), Treasure(), TASKS[:1], [5], count=8))
    returns = [path_return(path) for path, node in tree.walk() if node.ended]
    assert len(set(returns)) > 1
    assert path_return(best_path(tree)) == max(returns)


def test_chains_of_equal_return_are_told_apart_by_the_value_where_the_reward_is_withheld() -> None:
    [tree] = asyncio.run(roll_out(TablePolicy(WORDS), Maze(withheld=True), TASKS[:1], [5], count=8, value=HashValue()))
    ends = [node.value for path, node in tree.walk() if node.ended]
    assert best_path(tree)[-1].child is not None
    assert path_return(best_path(tree)) == max(ends)


def test_a_chain_depends_on_its_trees_seed_alone() -> None:
    together = asyncio.run(roll_out(TablePolicy(WORDS), Maze(), TASKS, range(4), count=3, value=HashValue()))
    for place in range(4):
        [alone] = asyncio.run(roll_out(TablePolicy(WORDS), Maze(), [TASKS[place]], [place], count=3, value=HashValue()))
        assert digest(alone) == digest(together[place])


def test_a_truncated_chain_is_worth_its_last_estimate() -> None:
    [tree] = asyncio.run(
        roll_out(AllPolicy("a"), Maze(end_share=0.0, limit_share=1.0), TASKS[:1], [0], value=ConstantValue(0.25))
    )
    [edge] = tree.root.edges
    assert edge.child is not None and edge.child.truncated
    assert (edge.value, edge.reward) == (0.25, 0.0)


class Slippery(Treasure):
    """Raises where a path leaves the best one after its first step."""

    async def step(self, state: State, action: Action) -> Transition:
        if len(state.messages) == 3 and state.messages[1].content == "a":
            raise OSError("the door is stuck")
        return await super().step(state, action)


def test_a_broken_chain_costs_neither_its_siblings_nor_its_neighbours() -> None:
    first, second = asyncio.run(
        roll_out(TablePolicy(WORDS), Slippery(), [TASKS[0], TASKS[1]], [5, 6], count=6, value=HashValue())
    )
    for tree in (first, second):
        broken = [edge for edge in tree.root.edges if edge.action.text == "a"]
        assert bool(broken) == bool(tree.error)
        assert tree.error in ("", "OSError: the door is stuck")
        for edge in tree.root.edges:
            assert (edge.visits, edge.value_sum > 0) == ((0, False) if edge in broken else (1, True))
        assert tree.budget.simulations == 6 - len(broken)
        assert all(edge not in best_path(tree) for edge in broken)
    assert first.error
    alone = asyncio.run(roll_out(TablePolicy(WORDS), Slippery(), [TASKS[1]], [6], count=6, value=HashValue()))[0]
    assert digest(alone) == digest(second)


def test_where_every_chain_breaks_there_is_no_plan() -> None:
    class Stuck(Treasure):
        async def step(self, state: State, action: Action) -> Transition:
            raise OSError("stuck")

    [tree] = asyncio.run(roll_out(TablePolicy(WORDS), Stuck(), TASKS[:1], [5], count=3, value=HashValue()))
    assert best_path(tree) == []
    assert tree.budget.simulations == tree.budget.estimates == 0


def test_seeds_and_tasks_must_match() -> None:
    with pytest.raises(ValueError, match="zip"):
        asyncio.run(roll_out(TablePolicy(WORDS), Maze(), TASKS, [0]))

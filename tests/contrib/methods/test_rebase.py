"""REBASE: how the candidates of a depth are distributed, by hand."""

import asyncio

import pytest
from toy_search import task
from written_world import InOrder, Written, statistics

from treeagent.contrib.methods.rebase import Rebase, split
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.node import Tree


def grown(world: Written, width: int, simulations: int) -> Tree:
    config = SearchConfig(Limits(simulations=simulations), method="rebase", options={"width": width})
    [tree] = asyncio.run(Rebase(InOrder("abcd"), world, config, world).run([task()], [0]))
    return tree


@pytest.mark.parametrize(
    ("budget", "scores", "temperature", "widths"),
    [
        (10, [0.2, 0.0], 0.2, [7, 3]),  # 10 / (1 + e^-1) = 7.31 and 2.69
        (10, [0.5, 0.5, 0.5], 0.2, [4, 3, 3]),
        (3, [0.1] * 8, 0.2, [1, 1, 1, 0, 0, 0, 0, 0]),  # 0.375 each
        (5, [1.0, 0.9], 0.001, [5, 0]),
        (2, [1000.0, -1000.0], 0.01, [2, 0]),
    ],
)
def test_a_budget_is_divided_by_a_softmax(
    budget: int, scores: list[float], temperature: float, widths: list[int]
) -> None:
    assert split(budget, scores, temperature) == widths


def test_a_tree_by_hand() -> None:
    """B = 4, T = 0.2. Depth 1: four candidates at the root. Depth 2: shares 2.73, 1.00, 0.14, 0.14 of 4 become 3 below
    a and 1 below b. aa ends, so three are left for depth 3. All of them go to ab, because ac and ba have exp(-5) of its
    weight."""
    world = Written(values={"a": 0.6, "b": 0.4, "ab": 1.0}, ends={"aa": 1.0})
    tree = grown(world, width=4, simulations=11)
    assert set(statistics(tree)) == {"a", "b", "c", "d", "aa", "ab", "ac", "ba", "aba", "abb", "abc"}
    assert (tree.budget.simulations, tree.budget.generated_tokens, tree.budget.proposals) == (11, 4 + 4 + 3, 4)

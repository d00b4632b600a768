"""Beam search and best-first search, in worlds small enough to compute by hand."""

import asyncio
from typing import Any

from toy_search import task
from written_world import InOrder, Written, said, statistics

from treeagent.search.baselines import Beam, BestFirst, Frontier
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.decide import best_path
from treeagent.search.node import Tree

AB = InOrder("ab")


def grown(search: Frontier) -> Tree:
    [tree] = asyncio.run(search.run([task()], [0]))
    return tree


def beam(world: Written, width: int, simulations: int, policy: InOrder = AB, **others: Any) -> Tree:
    return grown(Beam(policy, world, config(simulations, policy, width, beam=True, **others), world))


def best_first(world: Written, simulations: int, policy: InOrder = AB, **others: Any) -> Tree:
    return grown(BestFirst(policy, world, config(simulations, policy, **others), world))


def config(simulations: int, policy: InOrder, width: int = 2, **others: Any) -> SearchConfig:
    return SearchConfig(
        limits=Limits(simulations=simulations),
        candidates=len(policy.words),
        options={"width": width} if others.pop("beam", False) else {},
        **others,
    )


def order(tree: Tree) -> list[str]:
    """The expanded states, shallowest first."""
    return sorted((said(path) for path, node in tree.walk() if node.edges), key=lambda state: (len(state), state))


VALUES = {"a": 0.5, "b": 0.4, "c": 0.3, "aa": 0.1, "ab": 0.2, "ba": 0.7, "bb": 0.6}


def test_a_beam_by_hand() -> None:
    """B = 2 of K = 3: a and b are kept, c is not. Below them ba and bb are kept, which are both children of b."""
    tree = beam(Written(VALUES | {"bab": 0.9}), 2, 15, InOrder("abc"))
    assert order(tree) == ["", "a", "b", "ba", "bb"]
    assert statistics(tree) == {
        "a": (4, 0.8),
        "b": (10, 2.6),
        "c": (1, 0.3),
        "aa": (1, 0.1),
        "ab": (1, 0.2),
        "ac": (1, 0.0),
        "ba": (4, 1.6),
        "bb": (4, 0.6),
        "bc": (1, 0.0),
        "baa": (1, 0.0),
        "bab": (1, 0.9),
        "bac": (1, 0.0),
        "bba": (1, 0.0),
        "bbb": (1, 0.0),
        "bbc": (1, 0.0),
    }
    assert said(best_path(tree, "visits")) == "bab"
    assert (tree.budget.environment_steps, tree.budget.proposals, tree.budget.estimates) == (15, 5, 15)


def test_a_limit_cuts_a_beam_within_a_depth() -> None:
    tree = beam(Written(VALUES), 2, 5)
    assert order(tree) == ["", "a", "b"]
    assert [name for name, (visits, _) in statistics(tree).items() if visits] == ["a", "aa", "ab", "b", "ba"]
    assert beam(Written(VALUES), 2, 4).budget.proposals == 2  # b draws no candidates that could not be tried


def test_best_first_by_hand() -> None:
    """a (0.5) comes before b (0.4). The children of a are worth less than b. Below b, ba (0.7) is best, then bb
    (0.6)."""
    world = Written(VALUES | {"baa": 0.1, "bab": 0.3})
    assert [order(best_first(world, 2 * count))[-1] for count in (1, 2, 3, 4, 5)] == ["", "a", "b", "ba", "bb"]
    tree = best_first(world, 10)
    assert statistics(tree) == {
        "a": (3, 0.8),
        "aa": (1, 0.1),
        "ab": (1, 0.2),
        "b": (7, 2.1),
        "ba": (3, 1.1),
        "baa": (1, 0.1),
        "bab": (1, 0.3),
        "bb": (3, 0.6),
        "bba": (1, 0.0),
        "bbb": (1, 0.0),
    }


def test_without_a_value_the_likelier_path_goes_first() -> None:
    """P(b) = 3/4 at every state. So after b come bb (9/16) and bbb (27/64), then a (1/4)."""
    policy = InOrder("ab", {"a": -1.0986122886681098, "b": 0.0})
    search = BestFirst(policy, Written(), config(8, policy))
    assert order(grown(search)) == ["", "b", "bb", "bbb"]
    narrow = Beam(policy, Written(), config(6, policy, 1, beam=True))
    assert order(grown(narrow)) == ["", "b", "bb"]

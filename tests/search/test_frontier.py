"""Beam search and best-first search, in worlds small enough to compute by hand."""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_search import begin, task
from written_world import InOrder, Written, said, statistics

from treeagent.search.baselines import Beam, BestFirst, Frontier
from treeagent.search.config import SearchConfig
from treeagent.search.decide import best_path
from treeagent.search.growth import Growth, backup
from treeagent.search.limits import Limits
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action

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


def test_a_wider_beam_keeps_what_a_narrow_one_loses() -> None:
    world = Written(VALUES, ends={"cc": 1.0})
    narrow, wide = beam(world, 2, 12, InOrder("abc")), beam(world, 3, 12, InOrder("abc"))
    assert "cc" not in statistics(narrow)
    assert statistics(wide)["cc"] == (1, 1.0)
    assert said(best_path(wide, "leaf")) == "cc"


def test_an_end_leaves_the_beam_and_the_beam_goes_on() -> None:
    tree = beam(Written({"b": 0.1}, ends={"a": 0.9, "bb": 0.95, "ba": 0.0}), 1, 20)
    assert statistics(tree) == {
        "a": (1, 0.9),
        "b": (3, 1.05),
        "ba": (1, 0.0),
        "bb": (1, 0.95),
    }
    assert tree.budget.simulations == 4  # nothing is left to expand
    assert said(best_path(tree)) == "bb"


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


def test_best_first_goes_back_to_what_it_left() -> None:
    tree = best_first(Written({"a": 0.9, "b": 0.5, "aa": 0.3, "ab": 0.4}), 6)
    assert order(tree) == ["", "a", "b"]


def test_best_first_stops_when_nothing_is_left() -> None:
    tree = best_first(Written(ends=dict.fromkeys(["a", "ba", "bb"], 0.5)), 20)
    assert tree.budget.simulations == 4
    assert order(tree) == ["", "b"]


def test_without_a_value_the_likelier_path_goes_first() -> None:
    """P(b) = 3/4 at every state. So after b come bb (9/16) and bbb (27/64), then a (1/4)."""
    policy = InOrder("ab", {"a": -1.0986122886681098, "b": 0.0})
    search = BestFirst(policy, Written(), config(8, policy))
    assert order(grown(search)) == ["", "b", "bb", "bbb"]
    narrow = Beam(policy, Written(), config(6, policy, 1, beam=True))
    assert order(grown(narrow)) == ["", "b", "bb"]


def test_rewards_on_the_way_count() -> None:
    """V is the value of what comes after. With γ = 1, 0.2 + 0.3 at b is more than 0.4 at a; with γ = 1/2, 0.35 is more
    than 0.2."""
    world = Written({"a": 0.4, "b": 0.3}, rewards={"b": 0.2})
    assert order(best_first(world, 4)) == ["", "b"]
    early = Written({"a": 1.0, "b": 0.3}, rewards={"b": 0.2})
    assert order(best_first(early, 4)) == ["", "a"]
    assert order(best_first(early, 4, discount=0.25)) == ["", "b"]  # 0.2 + 0.075 against 0.25


def test_what_lies_deeper_is_discounted_more() -> None:
    """γ = 1/2: b (0.45) goes before a (0.2), and ba after a, because it counts 0.5² of 0.5."""
    world = Written({"a": 0.4, "b": 0.9, "ba": 0.5})
    assert order(best_first(world, 6)) == ["", "b", "ba"]
    assert order(best_first(world, 6, discount=0.5)) == ["", "a", "b"]


@given(st.floats(0.1, 1), st.integers(0, 2**32))
def test_a_path_ranks_by_the_return_that_its_backup_adds(discount: float, seed: int) -> None:
    """Thoughts take no step, and neither the rank nor the backup discounts them."""
    luck = random.Random(seed)
    path = [
        Edge(
            Action("think", "" if luck.random() < 0.3 else "act"),
            0.5,
            reward=luck.choice([None, luck.random()]),
            child=Node(begin(task(), ""), value=luck.random(), terminated=luck.random() < 0.5),
        )
        for _ in range(luck.randint(1, 5))
    ]
    search = Beam(AB, Written(), SearchConfig(discount=discount))
    backup(Growth(Tree(task(), 0, Node(begin(task(), "")), discount=discount)), path)
    worth, likelihood = search.rank(path)
    assert worth == pytest.approx(path[0].value_sum)
    assert likelihood == 0.5 ** len(path)


def test_nothing_grows_beyond_a_refused_call_unless_the_settings_say_so() -> None:
    world = Written({"a": 0.9, "b": 0.1}, refused=("a",))
    search = BestFirst(InOrder("ab"), world, SearchConfig(limits=Limits(simulations=4), candidates=2), world)
    assert order(grown(search)) == ["", "b"]

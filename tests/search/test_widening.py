"""Progressive widening: a state visited N times holds C N^α drawn candidates, and what they have found is kept."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError
from toy_search import AllPolicy, HashValue, Maze, TablePolicy, act, calls, digest, grow, task

from treeagent.search.config import SearchConfig
from treeagent.search.growth import expand, plant
from treeagent.search.limits import Limits
from treeagent.types import Action, Proposal, State, derive_seed

ENDLESS = Maze(end_share=0.0, limit_share=0.0)
WORDS = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}


@dataclass
class CountingPolicy:
    """Draws words of a table and counts those drawn at each state."""

    table: dict[str, float]
    drawn: Counter[tuple[str, ...]] = field(default_factory=Counter[tuple[str, ...]])

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        for state in states:
            self.drawn[(state.task.id, *calls(state))] += count
        return await TablePolicy(self.table).propose(states, count, seeds)


@dataclass
class Scripted:
    """Draws its words in order at the root, and one word elsewhere."""

    words: list[str]

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [Proposal((), tuple(self._next(state) for _ in range(count))) for state in states]

    def _next(self, state: State) -> Action:
        word = "d" if calls(state) else self.words.pop(0)
        return act(word, math.log(WORDS[word]))


def widening(simulations: int, candidates: int, factor: float, power: float, **others: object) -> SearchConfig:
    return SearchConfig(
        limits=Limits(simulations=simulations),
        candidates=candidates,
        widening=(factor, power),
        **others,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("simulations", "expected"),
    [(1, 2), (2, 2), (3, 3), (4, 3), (5, 3), (6, 4), (9, 5), (10, 5), (17, 6), (18, 7)],
)
def test_candidates_by_hand(simulations: int, expected: int) -> None:
    """C = 1.5, α = 0.5, two at first. The last of n simulations finds n - 1 visits: of 1 it wants 1.5, of 2 2.12, of 4
    3, of 5 3.35, of 8 4.24, of 9 4.5, of 16 6, of 17 6.18, rounded up."""
    policy = CountingPolicy({f"w{number}": 0.01 for number in range(100)})
    grow(policy, ENDLESS, widening(simulations, 2, 1.5, 0.5))
    assert policy.drawn[("toy",)] == expected


@example(1, 3.0, 0.3, 5, 60, 0.1, 24)  # two simulations are led from a widened state on to the same new one
@example(1, 1.75, 0.5, 5, 13, 0.0, 1)  # one draws for a widened state, and then finds all below it being tried
@given(
    st.integers(1, 5),
    st.floats(0.3, 4),
    st.floats(0.1, 0.9),
    st.integers(1, 6),
    st.integers(1, 60),
    st.floats(0, 0.4),
    st.integers(0, 2**32),
)
def test_no_state_holds_more_candidates_than_its_visits_allow(
    candidates: int, factor: float, power: float, leaves: int, simulations: int, end_share: float, seed: int
) -> None:
    """Also where several simulations in flight come to one state, though one that draws for it and then finds nothing
    left to try is no visit in the end; and never fewer than its last visit called for."""
    policy = CountingPolicy(WORDS)
    config = widening(simulations, candidates, factor, power, leaves=leaves)
    [tree] = grow(policy, Maze(end_share, 0.1), config, HashValue(), seeds=[seed])
    assert tree.root.visits == simulations
    for node in tree.nodes():
        drawn = policy.drawn[("toy", *calls(node.state))]
        if node.edges:
            assert drawn <= max(candidates, math.ceil(factor * (node.visits + leaves - 1) ** power))
            assert drawn >= max(candidates, math.ceil(factor * max(node.visits - leaves, 0) ** power))
        else:
            assert drawn == 0


def test_what_was_found_is_kept() -> None:
    """Of a, b, a, c drawn one after another: a and b keep their place, visits and child; priors are those of three."""
    [growth] = asyncio.run(plant(ENDLESS, [task()], [0]))
    policy, config, root = Scripted(["b", "a", "b", "c"]), widening(9, 2, 1.0, 0.5), growth.tree.root
    asyncio.run(expand(policy, [(growth, root)], 2, config))
    first, second = root.edges
    assert [edge.prior for edge in root.edges] == pytest.approx([3 / 7, 4 / 7])
    first.visits, first.value_sum = 3, 1.5
    asyncio.run(expand(policy, [(growth, root)], 2, config))
    assert root.edges[:2] == [first, second]
    assert [edge.action.text for edge in root.edges] == ["b", "a", "c"]
    assert [edge.prior for edge in root.edges] == pytest.approx([3 / 9, 4 / 9, 2 / 9])
    assert (first.visits, first.value_sum) == (3, 1.5)
    assert growth.tree.budget.generated_tokens == 4


def test_sequential_halving_goes_on_with_the_roots_first_candidates() -> None:
    """Below the root there are more with every visit."""
    policy = CountingPolicy(WORDS)
    [tree] = grow(policy, ENDLESS, widening(60, 3, 2.0, 0.6, selection="gumbel"))
    assert tree.root.visits == 60
    assert policy.drawn.pop(("toy",)) == 3
    assert max(policy.drawn.values()) > 3


def test_an_ended_candidate_does_not_stop_the_widening() -> None:
    """The only candidate at first ends at once; nothing is left but to draw others, which visits to it earn."""
    policy = CountingPolicy({f"w{number}": 0.01 for number in range(100)})
    [tree] = grow(policy, Maze(1.0, 0.0), widening(16, 1, 1.0, 0.5))
    assert tree.budget.simulations == 16
    assert policy.drawn[("toy",)] == 4  # at 15 visits
    assert len(tree.root.edges) > 1
    assert not tree.root.exhausted


def test_a_widening_search_needs_an_end() -> None:
    with pytest.raises(ValidationError, match=r"limits\.simulations is not set, and with widening"):
        SearchConfig(limits=Limits(environment_steps=10), widening=(1.0, 0.5))


@pytest.mark.parametrize("bad", [(0.0, 0.5), (1.0, 0.0), (1.0, 1.0), (-1.0, 0.5)])
def test_a_widening_that_is_none_is_refused(bad: tuple[float, float]) -> None:
    with pytest.raises(ValidationError, match="widening"):
        SearchConfig(widening=bad)


def test_the_roots_noise_stays_where_candidates_join() -> None:
    """A quarter of each prior is Dirichlet noise of the tree's seed: where one more edge joins two, theirs keeps its
    proportion."""
    noise = np.random.default_rng(derive_seed(5, "root noise")).dirichlet([0.3] * 3)
    two = np.random.default_rng(derive_seed(5, "root noise")).dirichlet([0.3] * 2)
    assert noise[0] / noise[1] == pytest.approx(two[0] / two[1])
    config = widening(3, 2, 1.5, 0.5, root_noise=0.25)
    [tree] = grow(Scripted(["a", "b", "c"]), ENDLESS, config, seeds=[5])
    assert [edge.action.text for edge in tree.root.edges] == ["a", "b", "c"]
    expected = [0.75 * share + 0.25 * float(part) for share, part in zip((4 / 9, 3 / 9, 2 / 9), noise, strict=True)]
    assert [edge.prior for edge in tree.root.edges] == pytest.approx(expected)


def test_neighbours_do_not_change_the_draws() -> None:
    """In one batch some states want one candidate more and others all of theirs, in whatever order the trees come."""
    config = widening(40, 3, 2.0, 0.7, leaves=4)
    tasks = [task(f"task {number}") for number in range(6)]
    random.Random(0).shuffle(tasks)
    together = grow(TablePolicy(WORDS), ENDLESS, config, HashValue(), tasks)
    for place, each in enumerate(tasks):
        [alone] = grow(TablePolicy(WORDS), ENDLESS, config, HashValue(), [each])
        assert digest(alone) == digest(together[place])


def test_a_search_that_does_not_widen_draws_once_a_state() -> None:
    policy = CountingPolicy(WORDS)
    [tree] = grow(policy, ENDLESS, SearchConfig(limits=Limits(simulations=30), candidates=3))
    assert set(policy.drawn.values()) == {3}
    assert len(policy.drawn) == tree.budget.proposals


def test_the_same_candidates_again_are_no_new_edges() -> None:
    [tree] = grow(AllPolicy("a", "b"), ENDLESS, widening(30, 2, 1.0, 0.9))
    assert all(len(node.edges) in (0, 2) for node in tree.nodes())
    assert tree.budget.simulations == 30

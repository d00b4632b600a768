"""Gumbel selection against numbers computed by hand, after Danihelka et al. 2022."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_search import AllPolicy, Maze, RevisitingGumbel, act, after, begin, counted, task

from treeagent.search.config import Limits, SearchConfig
from treeagent.search.gumbel import (
    Halving,
    best_root_edge,
    improved_policy,
    mixed_value,
    root_scores,
    transformed_values,
    visit_deficits,
)
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, State, Task, Transition

ENDLESS = Maze(end_share=0.0, limit_share=0.0)


def node(*edges: Edge, value: float = 0.0) -> Node:
    return counted(Node(begin(task(), "here"), value=value, edges=list(edges)))


def edge(prior: float, visits: int = 0, value: float = 0.0) -> Edge:
    return Edge(act("a"), prior, visits, visits * value)


def considered_visits(considered: int, simulations: int) -> list[int]:
    """The schedule under a limit on simulations alone."""
    halving = Halving(considered, [0] * considered)
    return [halving.required_visits(place, place / simulations) for place in range(simulations)]


def test_the_papers_figure_of_sequential_halving() -> None:
    """16 actions and 200 simulations (figure 1) give 4 phases of 50: 16 actions 3 times, 8 of them 6 times, 4 of them
    12 times, 2 of them 25 times. That makes 194, and the last 6 go to those two."""
    visits = [0] * 16
    for count in considered_visits(16, 200):
        visits[visits.index(count)] += 1  # the first action with that count, so that the first half goes on
    assert visits == [3 + 6 + 12 + 25 + 3] * 2 + [3 + 6 + 12] * 2 + [3 + 6] * 4 + [3] * 8


def test_phases_have_equal_shares_of_what_was_spent() -> None:
    """Two phases for four actions. Only second and later visits cost tokens, 0.06 each. Two rounds cost 0.24; three
    rounds would cost 0.48, and four would cost 0.72. Then two actions go on, at 0.12 a round: 0.12 + 0.12 and 0.24 +
    0.12 of this phase are less than a half, and so is 0.36 + 0.12."""
    halving, spent, dues = Halving(4, [0] * 4), 0.0, list[int]()
    for place in range(20):
        dues.append(halving.required_visits(place, spent))
        spent += 0.06 * (place >= 4)
    assert dues == [0] * 4 + [1] * 4 + [2] * 4 + [3, 3, 4, 4, 5, 5, 6, 6]


def test_the_mixed_value_by_hand() -> None:
    """V = 0.2; P 0.5 and 0.3 visited 3 times at 1 and once at 0: (0.2 + 4 * (0.5 * 1 + 0.3 * 0) / 0.8) / 5 = 0.54."""
    assert mixed_value(node(edge(0.5, 3, 1.0), edge(0.3, 1, 0.0), edge(0.2), value=0.2)) == pytest.approx(0.54)
    assert mixed_value(node(edge(0.5), edge(0.5), value=0.2)) == 0.2
    # (0.2 + 4 * (1 + 0) / 2) / 5: visited actions with prior 0 count alike
    assert mixed_value(node(edge(0.0, 3, 1.0), edge(0.0, 1, 0.0), edge(1.0), value=0.2)) == pytest.approx(0.44)


def test_the_transformed_values_by_hand() -> None:
    """Q is completed to 1, 0, 0.54 and scaled by (50 + 3) * 0.1 = 5.3. The second case, -1, 3, 1.16, has range 4."""
    here = node(edge(0.5, 3, 1.0), edge(0.3, 1, 0.0), edge(0.2), value=0.2)
    assert transformed_values(here) == pytest.approx([5.3, 0.0, 2.862])
    wide = node(edge(0.5, 3, 3.0), edge(0.3, 1, -1.0), edge(0.2), value=-0.2)
    assert mixed_value(wide) == pytest.approx((-0.2 + 4 * (1.5 - 0.3) / 0.8) / 5)  # 1.16
    assert transformed_values(wide) == pytest.approx([5.3, 0.0, 5.3 * 2.16 / 4])
    assert transformed_values(node(edge(1.0), value=0.2)) == [0.0]


def test_the_improved_policy_by_hand() -> None:
    """0.5 e^5.3 = 100.168, 0.3 and 0.2 e^2.862 = 3.4993, of 103.968 in sum."""
    here = node(edge(0.5, 3, 1.0), edge(0.3, 1, 0.0), edge(0.2), value=0.2)
    assert improved_policy(here) == pytest.approx([0.963457, 0.002886, 0.033658], abs=1e-6)
    unvisited = node(edge(0.5), edge(0.3), edge(0.2))
    assert improved_policy(unvisited) == pytest.approx([0.5, 0.3, 0.2])


@given(
    st.lists(st.tuples(st.floats(0.01, 1), st.integers(0, 5), st.floats(-5, 5)), min_size=1, max_size=8),
    st.floats(-5, 5),
)
def test_the_improved_policy_is_an_improvement(rows: list[tuple[float, int, float]], value: float) -> None:
    """Σ π' q ≥ Σ π q (equation 19), for q completed by a v that is Σ π q."""
    total = sum(prior for prior, _, _ in rows)
    edges = [edge(prior / total, visits, found) for prior, visits, found in rows]
    here = node(*edges, value=value)
    completed = [each.value if each.visits else mixed_value(here) for each in edges]
    policy = improved_policy(here)
    assert sum(policy) == pytest.approx(1.0)
    gain = sum((new - each.prior) * q for new, each, q in zip(policy, edges, completed, strict=True))
    assert gain >= -1e-9


def test_the_root_score_by_hand() -> None:
    """Noise of 1, 0 and -1 is added to log P and σ(q̂)."""
    here = node(edge(0.5, 3, 1.0), edge(0.3, 1, 0.0), edge(0.2), value=0.2)
    expected = [1 + math.log(0.5) + 5.3, math.log(0.3), -1 + math.log(0.2) + 2.862]
    assert root_scores(here, [1.0, 0.0, -1.0]) == pytest.approx(expected)


def test_below_the_root_visits_follow_the_improved_policy() -> None:
    """π' = 0.7, 0.2, 0.1 minus N / (1 + 4): 0.7 - 0.6, 0.2 - 0.2, 0.1 - 0. A simulation in flight counts as a visit of
    1 + 5."""
    here = node(edge(0.4, 3), edge(0.3, 1), edge(0.3))
    assert visit_deficits(here, [0.7, 0.2, 0.1]) == pytest.approx([0.1, 0.0, 0.1])
    here.edges[2].in_flight = here.in_flight = 1
    assert visit_deficits(here, [0.7, 0.2, 0.1]) == pytest.approx([0.7 - 3 / 6, 0.2 - 1 / 6, 0.1 - 1 / 6])


@dataclass(frozen=True)
class Bandit:
    """Every action ends the task and pays its entry in a table."""

    pays: Sequence[float]

    async def reset(self, task: Task) -> State:
        return begin(task, "start")

    async def step(self, state: State, action: Action) -> Transition:
        return Transition(after(state, action, "end"), self.pays[int(str(action.call))], terminated=True)


def play(pays: Sequence[float], config: SearchConfig, seed: int = 0, *, noise: bool = True) -> Tree:
    search = RevisitingGumbel(AllPolicy(*map(str, range(len(pays)))), Bandit(pays), config, noise=noise)
    [tree] = asyncio.run(search.run([task()], [seed]))
    return tree


def gumbel(simulations: int, considered: int = 16, leaves: int = 1) -> SearchConfig:
    return SearchConfig(
        limits=Limits(simulations=simulations),
        method="gumbel",
        options={"considered": considered, "widening": 0},
        leaves=leaves,
    )


@pytest.mark.parametrize("leaves", [1, 2, 4])
def test_a_halving_search_by_hand(leaves: int) -> None:
    """Four arms are visited once each, then the two that pay most twice each: 8 // (2 * 4) = 1, 8 // (2 * 2) = 2.
    Simulations in flight count as visits."""
    tree = play([0.1, 0.8, 0.3, 0.9], gumbel(8, leaves=leaves), noise=False)
    assert [edge.visits for edge in tree.root.edges] == [1, 3, 1, 3]
    assert best_root_edge(tree, noise=False) is tree.root.edges[3]

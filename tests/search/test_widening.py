"""PUCT draws candidates on demand: a possible new action competes with the existing actions of a state."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_search import ConstantValue, HashValue, Maze, TablePolicy, act, begin, calls, counted, grow, task

from treeagent.search.config import Limits, SearchConfig
from treeagent.search.mcts import Search
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.puct import LEAST_UNSEEN
from treeagent.search.searcher import Growth
from treeagent.types import Proposal, State

ENDLESS = Maze(end_share=0.0, limit_share=0.0)
WORDS = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}
MANY = {f"w{number}": 0.01 for number in range(100)}


@dataclass
class CountingPolicy:
    """Draws words from a table, and counts the draws at each state."""

    table: dict[str, float]
    drawn: Counter[tuple[str, ...]] = field(default_factory=Counter[tuple[str, ...]])

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        for state in states:
            self.drawn[(state.task.id, *calls(state))] += count
        return await TablePolicy(self.table).propose(states, count, seeds)


def limited(simulations: int, **others: object) -> SearchConfig:
    return SearchConfig(limits=Limits(simulations=simulations), **others)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prior", "unseen", "value_sum", "drawn", "c", "wanted"),
    [
        # V(s) = 0.5, W = 1.6 and N = 2, so the new action's Q is 2.1 / 3 - 0.1 = 0.6, and sqrt(1 + N) = 1.7321. The
        # drawn action has Q = 0.8.
        (0.7, 0.3, 1.6, 1, 0.5, False),  # 0.8 + 0.5 * 0.7 * 1.7321 / 3 = 1.0021 before 0.6 + 0.5 * 0.3 * 1.7321 / 2
        (0.1, 0.9, 1.6, 1, 0.5, True),  # 0.8 + 0.5 * 0.1 * 1.7321 / 3 = 0.8289, 0.6 + 0.5 * 0.9 * 1.7321 / 2 = 0.9897
        (0.1, 0.9, 1.6, 4, 0.5, False),  # after four draws, 0.6 + 0.5 * 0.9 * 1.7321 / 5 = 0.7559
        (0.1, 0.9, 1.6, 1, 0.0, False),  # without exploration the higher Q decides
        # W = 0.2: the drawn action has Q = 0.1, and the new one 0.7 / 3 - 0.1 = 0.1333.
        (0.7, 0.3, 0.2, 1, 0.0, True),
        (1.0, LEAST_UNSEEN / 2, 0.2, 1, 0.0, False),  # nothing new is left
    ],
)
def test_the_new_action_competes(
    prior: float, unseen: float, value_sum: float, drawn: int, c: float, wanted: bool
) -> None:
    edge = Edge(act("a"), prior, visits=2, value_sum=value_sum, child=Node(begin(task(), "next")))
    here = counted(Node(begin(task(), "here"), value=0.5, edges=[edge]))
    growth = Growth(Tree(task(), 0, here))
    growth.value_range.low, growth.value_range.high = 0.0, 1.0
    here.unseen, here.samples = unseen, [edge.action] * drawn
    assert Search(CountingPolicy(WORDS), ENDLESS, SearchConfig()).prefers_new(growth, here, c) is wanted


def test_a_likely_candidate_that_does_well_is_the_only_one() -> None:
    policy = CountingPolicy({"a": 0.99, "b": 0.01})
    [tree] = grow(policy, ENDLESS, limited(20), ConstantValue(0.5), seeds=[1])
    assert all(len(node.edges) <= 1 for node in tree.nodes())
    assert max(policy.drawn.values()) == 1


@given(
    widening=st.integers(1, 3),
    leaves=st.integers(1, 6),
    simulations=st.integers(1, 60),
    end_share=st.floats(0, 0.6),
    seed=st.integers(0, 2**32),
)
def test_every_draw_is_tried(widening: int, leaves: int, simulations: int, end_share: float, seed: int) -> None:
    """A simulation that drew a candidate continues through it, so with one at a time no candidate stays untried.
    Several simulations in flight may give up if they draw a candidate that another one is trying."""
    policy = CountingPolicy(WORDS)
    config = limited(simulations, options={"widening": widening}, leaves=leaves)
    [tree] = grow(policy, Maze(end_share, 0.1), config, HashValue(), seeds=[seed])
    assert tree.budget.simulations == simulations or tree.root.exhausted
    if widening == 1:
        assert all(edge.visits for node in tree.nodes() for edge in node.edges)
    for node in tree.nodes():
        assert policy.drawn[("toy", *calls(node.state))] % widening == 0
        assert bool(node.edges) == bool(policy.drawn[("toy", *calls(node.state))])


@pytest.mark.parametrize("tokens", [40, 320])
@pytest.mark.parametrize("leaves", [1, 3])
def test_gumbel_gathers_the_roots_candidates_in_its_first_phase(tokens: int, leaves: int) -> None:
    """16 actions are considered in four phases, and a hundred words are likely enough. At the root one candidate is
    drawn at a time, until a quarter of the tokens is spent, at two tokens each. Other states draw in the same way.
    Together they use all tokens."""
    policy = CountingPolicy(MANY)
    config = SearchConfig(Limits(generated_tokens=tokens), method="gumbel", leaves=leaves)
    [tree] = grow(policy, ENDLESS, config, HashValue())
    assert 1 < policy.drawn["toy",] <= min(tokens / 4 / 2 + leaves, 16)
    assert 2 * sum(policy.drawn.values()) == tree.budget.generated_tokens
    assert tokens <= tree.budget.generated_tokens < tokens + 2 * leaves


def test_a_policy_that_repeats_itself_ends_the_search() -> None:
    """The policy reports a probability of 0.2 for the only word that it ever says."""

    class Parrot:
        async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
            return [Proposal((1,), (act("a", math.log(0.2)),) * count) for _ in states]

    [tree] = grow(Parrot(), Maze(1.0, 0.0), SearchConfig(limits=Limits(environment_steps=1000)))
    assert tree.root.exhausted
    assert tree.budget.environment_steps == 1
    assert tree.budget.simulations < 200

"""PUCT draws candidates on demand: a possible new action competes with the existing actions of a state."""

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_search import ConstantValue, HashValue, Maze, TablePolicy, act, begin, calls, counted, grow, task

from treeagent.search.config import SearchConfig
from treeagent.search.growth import (
    UNSEEN_AT_FIRST,
    UNSEEN_AT_LAST,
    Growth,
    add_candidates,
    create_trees,
    may_sample_new,
    reopen,
    store_proposal,
)
from treeagent.search.limits import Limits
from treeagent.search.mcts import Search
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, Proposal, State

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


@dataclass
class Scripted:
    """Draws its words in order at the root, and one word elsewhere."""

    words: list[str]

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [Proposal((), tuple(self._next(state) for _ in range(count))) for state in states]

    def _next(self, state: State) -> Action:
        word = "d" if calls(state) else self.words.pop(0)
        return act(word, math.log(WORDS[word]))


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
        (1.0, UNSEEN_AT_FIRST / 2, 0.2, 1, 0.0, False),  # nothing new is left
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


@pytest.mark.parametrize("method", ["mcts", "ab_mcts"])
@pytest.mark.parametrize(("rest", "found"), [(UNSEEN_AT_LAST * 1.5, {"a", "b"}), (UNSEEN_AT_LAST / 2, {"a"})])
def test_unlikely_calls_are_sampled_after_all_others_are_explored(method: str, rest: float, found: set[str]) -> None:
    limits, policy = Limits(environment_steps=1000), CountingPolicy({"a": 1 - rest, "b": rest})
    [tree] = grow(policy, Maze(1.0, 0.0), SearchConfig(method=method, limits=limits), HashValue(), seeds=[1])
    assert {edge.action.text for edge in tree.root.edges} == found
    assert tree.root.exhausted
    assert (tree.budget.simulations == 1) is (found == {"a"})


@pytest.mark.parametrize(
    ("at_root", "below", "threshold", "root_open", "below_open"),
    [
        (0.03, 0.02, 0.025, True, False),
        (0.02, 0.03, 0.025, True, True),
        (0.0, 0.02, 0.0125, True, True),
        (0.01, 0.01, 0.0125, False, False),
    ],
)
def test_an_exhausted_tree_is_reopened_where_most_is_left(
    at_root: float, below: float, threshold: float, root_open: bool, below_open: bool
) -> None:
    end = Edge(act("end"), 1.0, child=Node(begin(task(), "end"), terminated=True, exhausted=True))
    middle = Node(begin(task(), "middle"), edges=[end], exhausted=True)
    start = Edge(act("start"), 1.0, child=middle)
    root = Node(begin(task(), "root"), edges=[start], exhausted=True)
    growth = Growth(Tree(task(), 0, root))
    root.unseen, middle.unseen = at_root, below
    end.best = start.best = 1.0
    assert reopen(growth) is root_open
    assert growth.least_unseen == threshold
    assert (root.exhausted, middle.exhausted) == (not root_open, not below_open)
    assert (end.best, start.best) == (1.0, None if below_open else 1.0)


def test_a_state_that_can_no_longer_be_read_stays_closed() -> None:
    inner = Edge(act("inner"), 0.9, child=Node(begin(task(), "end"), terminated=True, exhausted=True))
    middle = Node(begin(task(), "middle"), edges=[inner])
    root = Node(begin(task(), "root"), edges=[Edge(act("start"), 1.0, child=middle)], exhausted=True)
    middle.unseen, growth = 0.1, Growth(Tree(task(), 0, root))
    assert not store_proposal(growth, middle, Proposal((), (), error="too long"))
    assert middle.exhausted and not may_sample_new(growth, middle)
    middle.unseen = 0.03
    assert not reopen(growth) and middle.exhausted


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
    config = limited(simulations, widening=widening, leaves=leaves)
    [tree] = grow(policy, Maze(end_share, 0.1), config, HashValue(), seeds=[seed])
    assert tree.budget.simulations == simulations or tree.root.exhausted
    if widening == 1:
        assert all(edge.visits for node in tree.nodes() for edge in node.edges)
    for node in tree.nodes():
        assert policy.drawn[("toy", *calls(node.state))] % widening == 0
        assert bool(node.edges) == bool(policy.drawn[("toy", *calls(node.state))])


def test_what_was_found_is_kept() -> None:
    """The draws are b, a, then b, c. b and a keep their order, visits and children. The words' own probabilities are
    their priors, and a tenth is left for d."""
    [growth] = asyncio.run(create_trees(ENDLESS, [task()], [0]))
    policy, root = Scripted(["b", "a", "b", "c"]), growth.tree.root
    [proposal] = asyncio.run(policy.propose([root.state], 2, [0]))
    add_candidates(growth, root, proposal, 2, may_widen=True)
    first, second = root.edges
    assert [edge.prior for edge in root.edges] == pytest.approx([0.3, 0.4])
    assert root.unseen == pytest.approx(0.3)
    first.visits, first.value_sum = 3, 1.5
    [proposal] = asyncio.run(policy.propose([root.state], 2, [0]))
    add_candidates(growth, root, proposal, 2, may_widen=True)
    assert root.edges[:2] == [first, second]
    assert [edge.action.text for edge in root.edges] == ["b", "a", "c"]
    assert [edge.prior for edge in root.edges] == pytest.approx([0.3, 0.4, 0.2])
    assert root.unseen == pytest.approx(0.1)
    assert (first.visits, first.value_sum) == (3, 1.5)
    assert growth.tree.budget.generated_tokens == 4


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


def test_gumbel_looks_no_further_than_the_considered() -> None:
    policy = CountingPolicy(MANY)
    config = SearchConfig(Limits(simulations=100), method="gumbel", options={"considered": 3})
    [tree] = grow(policy, ENDLESS, config, HashValue())
    assert len(tree.root.edges) == 3
    assert max(policy.drawn.values()) > 1


def test_gumbel_draws_others_where_all_of_the_considered_are_explored() -> None:
    """Every action ends the episode at once. Three are considered, and all tokens are spent, two per draw."""
    policy = CountingPolicy(MANY)
    config = SearchConfig(Limits(generated_tokens=40), method="gumbel", options={"considered": 3})
    [tree] = grow(policy, Maze(1.0, 0.0), config, HashValue())
    assert policy.drawn == {("toy",): 20}
    assert 3 < len(tree.root.edges) <= 20


def test_a_policy_that_repeats_itself_ends_the_search() -> None:
    """The policy reports a probability of 0.2 for the only word that it ever says."""

    class Parrot:
        async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
            return [Proposal((1,), (act("a", math.log(0.2)),) * count) for _ in states]

    [tree] = grow(Parrot(), Maze(1.0, 0.0), SearchConfig(limits=Limits(environment_steps=1000)))
    assert tree.root.exhausted
    assert tree.budget.environment_steps == 1
    assert tree.budget.simulations < 200

"""The formulas of selection, and edges from candidates, against numbers computed by hand."""

import math
import random

import pytest
from toy_search import AllPolicy, Corridor, act, begin, counted, task

from treeagent.search.config import SearchConfig
from treeagent.search.mcts import Search
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.puct import (
    ValueRange,
    exploration_rate,
    new_action_value,
    puct_best,
    sampled_edges,
)
from treeagent.search.searcher import Growth, backup
from treeagent.types import Action, ToolCall


def node(*edges: Edge, value: float = 0.0) -> Node:
    return counted(Node(begin(task(), "here"), value=value, edges=list(edges)))


def test_exploration_rate_by_hand() -> None:
    assert exploration_rate(0, 1.25) == pytest.approx(1.25 + math.log(19653 / 19652))
    assert exploration_rate(19651, 1.25) == pytest.approx(1.25 + 0.6931471805599453)  # log(39304 / 19652)


def selected(config: SearchConfig, edges: list[Edge], low: float, high: float) -> Edge | None:
    here = node(*edges)
    growth = Growth(Tree(task(), 0, here), value_range=ValueRange(low, high))
    return Search(AllPolicy(), Corridor(), config).choose(growth, here, edges, config.options.get("c_init", 1.0))


def scores(config: SearchConfig, edges: list[Edge], low: float, high: float) -> list[float]:
    here = node(*edges)
    growth = Growth(Tree(task(), 0, here), value_range=ValueRange(low, high))
    c_init = config.options.get("c_init", 1.0)
    return [puct_best(here, [edge], growth.value_range, c_init)[0] for edge in edges]


def test_selection_follows_the_formula() -> None:
    """N(s) = 1 + 5 + 3 = 9 and the range is [0, 2], so Q̂ is half of Q: 0.5, 0.25, and for the untried edge 6.5 / 8 / 2
    - 0.1 = 0.30625.

    PUCT with c = 1.25 (+ 0.0005): 0.5 + 0.2 * 3 * c / 6 = 0.6251; 0.25 + 0.6 * 3 * c / 4 = 0.8127; 0.30625 + 0.2 * 3 *
    c = 1.0566. Without exploration the first wins.
    """
    first = Edge(act("first"), 0.2, visits=5, value_sum=5.0)
    second = Edge(act("second"), 0.6, visits=3, value_sum=1.5)
    third = Edge(act("third"), 0.2)
    edges = [first, second, third]
    puct = SearchConfig(options={"c_init": 1.25})
    assert scores(puct, edges, 0.0, 2.0) == pytest.approx([0.6251, 0.8127, 1.0566], abs=1e-4)
    assert selected(puct, edges, 0.0, 2.0) is third
    assert selected(SearchConfig(options={"c_init": 0.0}), edges, 0.0, 2.0) is first


def two_edges(in_flight: int) -> list[Edge]:
    """Equal priors and visits; Q = 0.6 with ``in_flight`` simulations in flight, and Q = 0.5."""
    one = Edge(act("a"), 0.5, visits=4, value_sum=2.4, child=node(), in_flight=in_flight)
    return [one, Edge(act("b"), 0.5, visits=4, value_sum=2.0, child=node())]


def test_simulations_in_flight_count_as_visits() -> None:
    """WU-UCT with c = 1. None in flight, N(s) = 9: 0.6 + 0.5 * 3 / 5 = 0.9. One, N(s) = 10: 0.6 + 0.5 * sqrt(10) / 6 =
    0.8635 against 0.5 + 0.5 * sqrt(10) / 5 = 0.8162. Three, N(s) = 12: 0.6 + 0.5 * sqrt(12) / 8 = 0.8165 against
    0.8464."""
    config = SearchConfig(options={"c_init": 1.0})  # c(s) is 1.0005 to 1.0007, hence the tolerance
    assert scores(config, two_edges(0), 0.0, 1.0) == pytest.approx([0.9, 0.8], abs=3e-4)
    assert scores(config, two_edges(1), 0.0, 1.0) == pytest.approx([0.8635, 0.8162], abs=3e-4)
    assert scores(config, two_edges(3), 0.0, 1.0) == pytest.approx([0.8165, 0.8464], abs=3e-4)


def test_values_before_the_first_visit_by_hand() -> None:
    """W = 3 and N = 4, divided by the range of 1.5, minus 0.1. A candidate without visits gets the mean of its
    siblings, 3/4. An action not sampled yet counts V(s) as one more visit: 3/5 if V(s) = 0, and 3.6/5 if it is 0.6."""
    tried = [Edge(act("a"), 0.5, visits=3, value_sum=3.0), Edge(act("b"), 0.3, visits=1, value_sum=0.0)]
    untried, values = Edge(act("c"), 0.0), ValueRange(0.0, 1.5)
    assert puct_best(node(*tried, untried), [untried], values, 0.0)[0] == pytest.approx(0.4)
    assert puct_best(node(untried, value=0.6), [untried], values, 0.0)[0] == pytest.approx(0.3)
    assert new_action_value(node(*tried, untried), values) == pytest.approx(0.3)
    assert new_action_value(node(*tried, untried, value=0.6), values) == pytest.approx(0.38)


def test_a_value_outside_the_range_of_returns_counts_as_its_end() -> None:
    """V = 0.5 above the range [0.4, 0.41] is worth 1 and not 10, V = 0.3 is worth 0, both minus 0.1."""
    values = ValueRange(0.4, 0.41)
    assert [new_action_value(node(value=v), values) for v in (0.5, 0.3)] == pytest.approx([0.9, -0.1])


def test_min_max_normalisation() -> None:
    values = ValueRange()
    assert values.normalise(3.0) == 0.5
    values.include(2.0)
    assert values.normalise(2.0) == 0.5
    values.include(-2.0)
    assert [values.normalise(value) for value in (-2.0, -1.0, 0.0, 2.0)] == [0.0, 0.25, 0.5, 1.0]


def chain(*rewards: float | None, value: float, terminated: bool) -> list[Edge]:
    path = [Edge(act(f"step {place}"), 1.0, reward=reward, child=node()) for place, reward in enumerate(rewards)]
    last = path[-1].child
    assert last is not None
    last.value, last.terminated = value, terminated
    return path


def sprout(discount: float = 1.0) -> Growth:
    return Growth(Tree(task(), 0, Node(begin(task(), "start")), discount=discount))


def test_backup_with_discount() -> None:
    """Rewards 1, 2, 4, then V = 8, γ = 1/2: 4 + 4 = 8, 2 + 4 = 6, 1 + 3 = 4."""
    path, growth = chain(1.0, 2.0, 4.0, value=8.0, terminated=False), sprout(discount=0.5)
    values = growth.value_range
    backup(growth, path)
    assert [(edge.visits, edge.value_sum) for edge in path] == [(1, 4.0), (1, 6.0), (1, 8.0)]
    assert (values.low, values.high) == (4.0, 8.0)
    last = path[-1].child
    assert last is not None
    last.value = 0.0
    backup(growth, path)  # 4, 2 + 2 = 4, 1 + 2 = 3
    assert [edge.value_sum for edge in path] == [7.0, 10.0, 12.0]
    assert [edge.value for edge in path] == [3.5, 5.0, 6.0]
    assert (values.low, values.high) == (3.5, 8.0)


def merged(*actions: Action) -> list[Edge]:
    return sampled_edges(actions, widen=False)[0]


def test_priors_by_hand() -> None:
    """Call a has two texts of 0.1 and 0.3; b has one of 0.2. S = 0.6, so 0.4 is left; T = 3 texts and C = 2 calls.
    P(new) = 0.4 * 2/3 = 0.8/3, less than the share 1/3 of calls sampled once; the other 0.4/3 goes to a and b by 2 to
    1. Without P(new) they get all of 0.4."""
    unlikely = act("a", math.log(0.1), text="Thought: hm\nAction: a")
    likely = act("a", math.log(0.3), text="Action: a")
    other = act("b", math.log(0.2), text="Action: b")
    edges, new = sampled_edges([unlikely, other, likely])
    assert [edge.action for edge in edges] == [likely, other]  # in the order of first draws, with the likeliest text
    assert new == pytest.approx(0.8 / 3)
    assert [edge.prior for edge in edges] == pytest.approx([0.4 + 0.8 / 9, 0.2 + 0.4 / 9])
    assert [edge.prior for edge in merged(unlikely, other, likely)] == pytest.approx([2 / 3, 1 / 3])


def test_the_chance_of_a_new_call_in_expectation() -> None:
    """The estimate against the probability of all calls that were not sampled, on average over 400 draws: four equal
    calls, ten rare ones beside one of 0.9, and fifty equal ones, with one text for each call and with 1,000."""
    for shares, samples, one_text, many_texts in (
        ([1 / 4] * 4, 4, (-0.1, 0.0), (0.05, 0.15)),
        ([1 / 4] * 4, 16, (-0.02, 0.02), (0.0, 0.06)),  # without the share of calls sampled once, 0.24 too high
        ([0.9] + [0.01] * 10, 4, (-0.02, 0.02), (0.0, 0.06)),  # 0.25 too high
        ([0.02] * 50, 16, (-0.08, 0.0), (-0.02, 0.03)),  # 0.13 too high
    ):
        for texts, (low, high) in ((1, one_text), (1000, many_texts)):
            assert low <= excess_of_new(shares, texts, samples) <= high


def excess_of_new(shares: list[float], texts: int, samples: int) -> float:
    """The mean of P(new) minus its true value."""
    luck, excess = random.Random(0), 0.0
    for _ in range(400):
        drawn = luck.choices(range(len(shares)), shares, k=samples)
        actions = [act(str(n), math.log(shares[n] / texts), text=f"{luck.randrange(texts)} {n}") for n in drawn]
        excess += sampled_edges(actions)[1] - (1 - sum(shares[n] for n in set(drawn)))
    return excess / 400


def test_repeated_samples_show_that_little_is_left() -> None:
    """The server reports 0.2 and 0.2, but nine samples brought nothing else, so at most (0 + 1) / (9 + 1) is left."""
    edges, new = sampled_edges([act("a", math.log(0.2))] * 5 + [act("b", math.log(0.2))] * 4)
    assert new == pytest.approx(0.1)
    assert [edge.prior for edge in edges] == pytest.approx([0.45, 0.45])


def test_equal_tool_calls_are_one_edge() -> None:
    one = Action("first words", ToolCall("open", {"item": 3}), token_ids=(1,), logprobs=(-1.0,))
    two = Action("other words", ToolCall("open", {"item": 3}), token_ids=(2,), logprobs=(-2.0,))
    three = Action("third words", ToolCall("open", {"item": 4}), token_ids=(3,), logprobs=(-2.0,))
    assert [edge.action for edge in merged(one, two, three)] == [one, three]

"""The formulas of selection, and candidates to edges, against numbers computed by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_search import AllPolicy, Corridor, act, begin, task

from treeagent.search.config import SearchConfig
from treeagent.search.growth import Growth, backup
from treeagent.search.mcts import Search
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.puct import (
    ValueRange,
    edges_from,
    exploration_rate,
    first_play_value,
    puct_score,
    uct_score,
)
from treeagent.types import Action, ToolCall


def node(*edges: Edge, value: float = 0.0) -> Node:
    return Node(begin(task(), "here"), value=value, edges=list(edges))


def test_exploration_rate_by_hand() -> None:
    assert exploration_rate(0, 1.25, 19652.0) == pytest.approx(1.25 + math.log(19653 / 19652))
    assert exploration_rate(9, 1.25, 10.0) == pytest.approx(1.25 + 0.6931471805599453)  # log(20 / 10)


def test_puct_by_hand_on_three_edges() -> None:
    """N(s) = 9, c = 2: sqrt(9) = 3."""
    assert puct_score(0.5, 0.2, 9, 5, 2.0) == pytest.approx(0.7)  # 0.5 + 2 * 0.2 * 3 / 6
    assert puct_score(0.25, 0.5, 9, 4, 2.0) == pytest.approx(0.85)  # 0.25 + 2 * 0.5 * 3 / 5
    assert puct_score(0.1, 0.3, 9, 0, 2.0) == pytest.approx(1.9)  # 0.1 + 2 * 0.3 * 3 / 1


def test_uct_by_hand() -> None:
    assert uct_score(0.5, 9, 2, 1.5) == pytest.approx(0.5 + 1.5 * math.sqrt(math.log(9) / 3))
    assert uct_score(0.5, 0, 0, 1.5) == 0.5  # before any visit there is nothing to explore by


def selected(config: SearchConfig, edges: list[Edge], low: float, high: float) -> Edge | None:
    here = node(*edges)
    growth = Growth(Tree(task(), 0, here), ValueRange(low, high))
    return Search(AllPolicy(), Corridor(), config)._best_edge(growth, here)


def test_selection_follows_the_formula() -> None:
    """N(s) = 9, range [0, 2], so Q̂ is half of Q: 0.5, 0.25, and untried (5 + 2) / 9 / 2 - 0.1 = 0.2889.

    PUCT with c = 1.25 (+ 0.0005): 0.5 + 0.2 * 3 * c / 6 = 0.6251; 0.25 + 0.6 * 3 * c / 5 = 0.7002;
    0.2889 + 0.2 * 3 * c = 1.0392. Without exploration the first wins, and by a small c the second.
    """
    first = Edge(act("first"), 0.2, visits=5, value_sum=5.0)
    second = Edge(act("second"), 0.6, visits=4, value_sum=2.0)
    third = Edge(act("third"), 0.2)
    edges = [first, second, third]
    assert selected(SearchConfig(), edges, 0.0, 2.0) is third
    assert selected(SearchConfig(first_play_reduction=0.438), edges, 0.0, 2.0) is third  # 1.0392 - 0.338 = 0.7012
    assert selected(SearchConfig(first_play_reduction=0.440), edges, 0.0, 2.0) is second  # 1.0392 - 0.340 = 0.6992
    assert selected(SearchConfig(c_init=0.0), edges, 0.0, 2.0) is first
    # UCT, c = 1, log 9 = 2.1972: 0.5 + sqrt(log 9 / 6) = 1.1051; 0.25 + sqrt(log 9 / 5) = 0.9129; 1.4823 - r
    uct = SearchConfig(selection="uct", c_init=1.0, first_play_reduction=1.0)
    assert selected(uct, edges, 0.0, 2.0) is first  # third: 0.3889 - 1 + 1.4823 = 0.8712
    assert selected(SearchConfig(selection="uct", c_init=1.0), edges, 0.0, 2.0) is third


def test_priors_decide_before_the_first_visit() -> None:
    edges = [Edge(act("a"), 0.2), Edge(act("b"), 0.5), Edge(act("c"), 0.3)]
    assert selected(SearchConfig(), edges, math.inf, -math.inf) is edges[1]


def test_first_play_value_is_the_siblings_mean_less_a_reduction() -> None:
    tried = [Edge(act("a"), 0.5, visits=3, value_sum=3.0), Edge(act("b"), 0.3, visits=1, value_sum=0.0)]
    untried = Edge(act("c"), 0.2)
    assert first_play_value(node(*tried, untried), ValueRange(0.0, 1.5), 0.1) == pytest.approx(0.4)  # 3/4/1.5 - 0.1
    assert first_play_value(node(untried, value=0.6), ValueRange(0.0, 1.5), 0.1) == pytest.approx(0.3)


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
    backup(path, growth)
    assert [(edge.visits, edge.value_sum) for edge in path] == [(1, 4.0), (1, 6.0), (1, 8.0)]
    assert (values.low, values.high) == (4.0, 8.0)
    last = path[-1].child
    assert last is not None
    last.value = 0.0
    backup(path, growth)  # 4, 2 + 2 = 4, 1 + 2 = 3
    assert [edge.value_sum for edge in path] == [7.0, 10.0, 12.0]
    assert [edge.value for edge in path] == [3.5, 5.0, 6.0]
    assert (values.low, values.high) == (3.5, 8.0)


@pytest.mark.parametrize(
    ("reward", "terminated", "expected"),
    [(4.0, True, 4.0), (None, True, 8.0), (4.0, False, 12.0), (None, False, 8.0), (0.0, True, 0.0)],
)
def test_nothing_follows_a_known_end_only(reward: float | None, terminated: bool, expected: float) -> None:
    path = chain(reward, value=8.0, terminated=terminated)
    backup(path, sprout())
    assert path[0].value == expected


def merged(*actions: Action, merge: str = "call", temperature: float = 1.0, length_power: float = 0.0) -> list[Edge]:
    return edges_from(actions, merge=merge, temperature=temperature, length_power=length_power)


def test_duplicates_are_merged_and_their_mass_summed() -> None:
    """Call a has two texts of 0.1 and 0.3, b has one of 0.2, drawn twice: 0.4 and 0.2 of 0.6."""
    unlikely = act("a", math.log(0.1), text="Thought: hm\nAction: a")
    likely = act("a", math.log(0.3), text="Action: a")
    other = act("b", math.log(0.2), text="Action: b")
    edges = merged(unlikely, other, likely, other)
    assert [edge.action for edge in edges] == [likely, other]  # the place of the first drawn, the likeliest kept
    assert [edge.prior for edge in edges] == pytest.approx([2 / 3, 1 / 3])
    apart = merged(unlikely, other, likely, other, merge="text")
    assert [edge.action for edge in apart] == [unlikely, other, likely]
    assert [edge.prior for edge in apart] == pytest.approx([1 / 6, 2 / 6, 3 / 6])


def test_temperature_and_length_shape_the_priors() -> None:
    short, long = act("a", math.log(0.5), tokens=1), act("b", math.log(0.25), tokens=2)
    assert [edge.prior for edge in merged(short, long)] == pytest.approx([2 / 3, 1 / 3])
    assert [edge.prior for edge in merged(short, long, length_power=1.0)] == pytest.approx([0.5, 0.5])
    assert [edge.prior for edge in merged(short, long, temperature=0.5)] == pytest.approx([4 / 5, 1 / 5])


def test_malformed_candidates_are_merged_by_text() -> None:
    one, two = act("", -1.0, text="hm", error="no call"), act("", -1.0, text="er", error="no call")
    assert [edge.action for edge in merged(one, two, one)] == [one, two]


def test_a_malformed_text_that_reads_like_a_call_is_not_that_call() -> None:
    malformed = act("", -0.5, text="click[buy now]", error="no Action:")
    good = act("click[buy now]", -1.0, text="Action: click[buy now]")
    assert [edge.action for edge in merged(malformed, good)] == [malformed, good]


def test_equal_tool_calls_are_one_edge() -> None:
    one = Action("first words", ToolCall("open", {"item": 3}), token_ids=(1,), logprobs=(-1.0,))
    two = Action("other words", ToolCall("open", {"item": 3}), token_ids=(2,), logprobs=(-2.0,))
    three = Action("third words", ToolCall("open", {"item": 4}), token_ids=(3,), logprobs=(-2.0,))
    assert [edge.action for edge in merged(one, two, three)] == [one, three]


@pytest.mark.parametrize("logprob", [math.nan, -math.inf, math.inf])
def test_a_log_probability_that_is_no_number_is_refused(logprob: float) -> None:
    with pytest.raises(ValueError, match="of action 'b' is not finite"):
        merged(act("a"), act("b", logprob))


def test_no_candidates_are_refused() -> None:
    with pytest.raises(ValueError, match="proposed no action"):
        merged()


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz"), st.floats(-800, 0)), min_size=1),
    st.floats(0.1, 10),
    st.floats(0, 2),
)
def test_priors_are_a_distribution(
    drawn: list[tuple[str, str, float]], temperature: float, length_power: float
) -> None:
    actions = [act(call, logprob, text=call + thought) for call, thought, logprob in drawn]
    edges = merged(*actions, temperature=temperature, length_power=length_power)
    assert sum(edge.prior for edge in edges) == pytest.approx(1.0)
    assert {edge.action.call for edge in edges} == {call for call, _, _ in drawn}
    for edge in edges:
        same = [action.logprob for action in actions if action.call == edge.action.call]
        assert edge.action.logprob == max(same)

"""From statistics to actions, on hand-made trees."""

from dataclasses import replace

import pytest
from toy_search import act, begin, task

from treeagent.search.decide import Decision, best_path, best_weight, most_visited_path
from treeagent.search.node import Edge, Node, Tree


def edge(name: str, visits: int, q: float, *below: Edge, reward: float | None = 0.0, prior: float = 0.1) -> Edge:
    """An edge to a child that has the edges ``below``. Without them the child is a leaf that has not ended."""
    child = Node(begin(task(), name), edges=list(below))
    return Edge(act(name), prior, visits, visits * q, reward, child)


def ends(name: str, visits: int, q: float, *, truncated: bool = False, value: float = 0.0) -> Edge:
    """An edge to an end that pays ``q``, or to a limit with V = ``value``."""
    made = edge(name, visits, q, reward=q - value if truncated else q)
    assert made.child is not None
    made.child.terminated, made.child.truncated, made.child.value = not truncated, truncated, value
    return made


def tree(*edges: Edge) -> Tree:
    return Tree(task(), 0, Node(begin(task(), "root"), edges=list(edges)))


def names(path: list[Edge]) -> str:
    return "".join(each.action.text for each in path)


EXAMPLE = tree(
    edge("a", 10, 0.4, edge("b", 6, 0.3), ends("c", 3, 0.6)),  # most visited; c ends well
    edge("d", 4, 0.5, ends("e", 2, 0.2), ends("f", 2, 0.9)),  # highest Q; f ends best
    Edge(act("g"), 0.9),
)


@pytest.mark.parametrize(("decision", "expected"), [("visits", "ab"), ("value", "df"), ("leaf", "df")])
def test_decisions_by_hand(decision: Decision, expected: str) -> None:
    assert names(best_path(EXAMPLE, decision)) == expected


def test_the_best_leaf_need_not_lie_where_the_mean_is_best() -> None:
    grown = tree(edge("a", 9, 0.8, ends("b", 9, 0.8)), edge("c", 5, 0.1, ends("d", 4, 0.0), ends("e", 1, 0.9)))
    assert names(best_path(grown, "leaf")) == "ce"
    assert names(best_path(grown, "value")) == "ab"


def test_a_withheld_end_counts_by_its_estimate() -> None:
    grown = tree(ends("a", 1, 0.5), ends("b", 1, 0.0))
    last = grown.root.edges[1]
    assert last.child is not None
    last.reward, last.child.value = None, 0.6
    assert names(best_path(grown, "leaf")) == "b"


def test_a_subtree_left_because_nothing_is_left_to_find_competes_with_the_most_visited() -> None:
    grown = tree(edge("a", 9, 0.4), ends("b", 1, 0.9), edge("c", 3, 0.95))
    assert grown.root.edges[1].child is not None
    grown.root.edges[1].child.exhausted = True  # c is open: if it were as good, search would have come back
    assert names(best_path(grown, "visits")) == "b"
    assert names(most_visited_path(grown)) == "a"
    grown.root.edges[1].child.unknown = True  # it was left because a request failed
    assert names(best_path(grown, "visits")) == "a"


def test_gumbel_takes_what_its_root_settled_on_and_then_the_improved_policy() -> None:
    below = [ends("x", 1, 0.2), ends("y", 1, 0.8)]
    grown = tree(edge("a", 2, 0.5, *below, prior=0.5), edge("b", 2, 0.1, prior=0.5))
    # log P is equal, so Q decides at the root; below it, y has the higher completed Q.
    assert names(best_path(grown, "gumbel")) == "ay"


def test_an_end_that_the_policy_finds_unlikely_loses_by_the_weight_of_its_likelihood() -> None:
    # act() gives each action a log-probability of -1; that of c is -3, so that the mean of its path is -2.
    last = ends("c", 1, 0.85)
    last.action = replace(last.action, logprobs=(-3.0,))
    grown = tree(ends("a", 1, 0.80), edge("b", 1, 0.85, last))
    assert names(best_path(grown, "leaf")) == "bc"
    assert names(best_path(grown, "leaf", likelihood_weight=0.04)) == "bc"  # 0.85 - 0.08 against 0.80 - 0.04
    assert names(best_path(grown, "leaf", likelihood_weight=0.06)) == "a"  # 0.85 - 0.12 against 0.80 - 0.06


def test_the_weight_of_the_likelihood_is_the_one_that_takes_most_successes() -> None:
    def withheld(name: str, value: float, logprob: float, *, solved: bool) -> Edge:
        made = ends(name, 1, 0.0, value=value)
        made.action = replace(made.action, logprobs=(logprob,))
        made.reward, made.own_reward = None, float(solved)
        return made

    # V is right by 0.02 where λ may cost at most 0.01 a nat, and wrong by 0.1 where λ must give 0.05.
    by_value = tree(withheld("a", 0.52, -3.0, solved=True), withheld("b", 0.50, -1.0, solved=False))
    by_policy = tree(withheld("a", 0.60, -3.0, solved=False), withheld("b", 0.50, -1.0, solved=True))
    assert best_weight([by_value], "leaf") == 0.0
    assert best_weight([by_policy, by_policy, by_value], "leaf") == 0.1
    assert best_weight([by_value, by_policy, by_value], "leaf") == 0.0
    assert best_weight([tree()], "leaf") == 0.1  # a search that failed at once

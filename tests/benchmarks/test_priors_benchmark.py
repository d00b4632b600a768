"""The figures of priors, on a tree by hand."""

import math

import pytest
from toy_search import act, begin, task

from benchmarks.priors import figures
from treeagent.search.node import Edge, Node, Tree


def test_the_figures_by_hand() -> None:
    """At the root a call has 0.5, another 0.3, and 0.2 is left. After the first, a call has 1 and succeeds."""
    end = Node(begin(task(), "won"), terminated=True, value=0.9)
    middle = Node(begin(task(), "middle"), edges=[Edge(act("finish"), 1.0, 1, 1.0, reward=1.0, child=end)])
    lost = Node(begin(task(), "lost"), terminated=True, value=0.1, invalid=True)
    edges = [Edge(act("go"), 0.5, 1, 1.0, child=middle), Edge(act("stop"), 0.3, 1, 0.0, child=lost)]
    found = figures([Tree(task(), 0, Node(begin(task(), "start"), edges=edges))])
    assert found["greatest P"] == pytest.approx((0.5 + 1.0) / 2)
    entropy = -(0.5 * math.log(0.5) + 0.3 * math.log(0.3) + 0.2 * math.log(0.2))
    assert found["entropy"] == pytest.approx(entropy / 2)
    assert found["calls"] == 1.5
    assert found["P of successes"] == pytest.approx(math.sqrt(0.5))
    assert found["malformed or refused"] == pytest.approx(1 / 3)
    assert found["AUC at ends"] == 1.0


def test_trees_without_success_and_choice_have_fewer_figures() -> None:
    assert figures([Tree(task(), 0, Node(begin(task(), "start")))]) == {"malformed or refused": 0.0}

"""A search ends once spending the rest of its limits cannot pay off."""

import asyncio
import math

import pytest
from toy_search import task
from written_world import InOrder, Written

from treeagent.search.config import Enough, Limits, SearchConfig
from treeagent.search.searcher import make_search


def test_the_gain_by_hand() -> None:
    """A quarter of the limits is left, and the best end is 0.2 below 1, so the possible gain is 0.05."""

    def too_little(least_gain: float, best: float, share: float) -> bool:
        return Enough(1.0, least_gain=least_gain).gains_too_little(best, share)

    assert too_little(0.06, 0.8, 0.75)
    assert not too_little(0.04, 0.8, 0.75)
    assert not too_little(1e9, -math.inf, 0.75)
    assert not too_little(0.0, 1.0, 0.0)
    assert not too_little(0.0, 1.2, 0.5) and too_little(0.01, 1.2, 0.5)


@pytest.mark.parametrize(
    ("least", "likelihood_weight", "episodes"),
    [(0.25, 0.0, 4), (0.35, 0.0, 2), (0.25, 0.1, 6), (0.0, 0.0, 10)],
)
def test_the_end_of_a_search_by_hand(least: float, likelihood_weight: float, episodes: int) -> None:
    """Each episode has two steps of -1 nat and pays 0.6. Of 10 episodes, the possible gain after 4 is 0.6 * 0.4 = 0.24,
    after 3 0.28, after 2 0.32, after 1 0.36. With λ = 0.1 the end is worth 0.5, so it is 0.2 after 6 and 0.25 after
    5."""
    world = Written(ends={"aa": 0.6})
    config = SearchConfig(Limits(simulations=10), method="best_of_n")
    enough = Enough(1.0, likelihood_weight, least)
    search = make_search(InOrder("a"), world, config, world, enough=enough)
    [tree] = asyncio.run(search.run([task()], [0]))
    assert tree.budget.simulations == episodes

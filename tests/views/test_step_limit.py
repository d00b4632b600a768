"""An episode cut off by the task's own step limit is over: every view counts only the rewards that it was paid.

In the hall, two times "good" wins and ends the task. Every other episode is cut off after three steps, with reward 0.
"""

import asyncio
from dataclasses import dataclass

import pytest
from toy_search import ConstantValue, TablePolicy, after, begin, calls, task

from treeagent.search.config import Limits, SearchConfig
from treeagent.search.node import Tree, finished_paths, path_return
from treeagent.search.searcher import make_search
from treeagent.types import Action, State, Task, Transition
from treeagent.views import (
    AdvantageConfig,
    PairConfig,
    advantages,
    preference_pairs,
)
from treeagent.views.figures import return_spread, tree_figures


@dataclass(frozen=True)
class Hall:
    async def reset(self, task: Task) -> State:
        return begin(task, "start")

    async def step(self, state: State, action: Action) -> Transition:
        said = (*calls(state), str(action.call))
        won = said[-2:] == ("good", "good")
        cut = not won and len(said) == 3
        return Transition(after(state, action, " ".join(said)), float(won), terminated=won, truncated=cut)


POLICY = TablePolicy({"good": 0.5, "wait": 0.5})
GUESS = 0.7
"""V of every state, as from a head that has never seen a failure."""


def hall_tree() -> Tree:
    """Eight chains, some of which win and some of which are cut off."""
    config = SearchConfig(method="best_of_n", limits=Limits(simulations=8))
    [tree] = asyncio.run(make_search(POLICY, Hall(), config, ConstantValue(GUESS)).run([task()], [3]))
    return tree


def test_a_chain_that_the_limit_cuts_off_returns_what_it_was_paid() -> None:
    tree = hall_tree()
    returns = [path_return(path) for path in finished_paths(tree)]
    assert len(returns) == 8
    assert set(returns) == {0.0, 1.0}
    won = returns.count(1.0) / 8
    assert return_spread(tree) == pytest.approx((won * (1 - won)) ** 0.5)
    figures = tree_figures([tree])
    assert figures["reward"] == won
    assert figures["reward_std"] > 0


def test_flat_grpo_scores_it_below_the_mean_and_a_pair_rejects_it() -> None:
    tree = hall_tree()
    scored = advantages([tree], AdvantageConfig(kind="grpo"))
    for path in finished_paths(tree):
        won = path[-1].child is not None and path[-1].child.terminated
        assert (scored[id(path[-1])] > 0) == won
    [pair] = preference_pairs(tree, PairConfig(rule="trajectory"))
    assert pair.margin == 1.0

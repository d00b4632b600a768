"""An episode cut off by the task's own step limit is over: every view counts only the rewards that it was paid.

In the hall, two times "good" wins and ends the task. Every other episode is cut off after three steps, with reward 0.
"""

import asyncio
from dataclasses import dataclass

import pytest
from toy_search import ConstantValue, TablePolicy, after, begin, calls, task

from treeagent.search.config import SearchConfig
from treeagent.search.limits import Limits
from treeagent.search.methods import make_search
from treeagent.search.node import Edge, Node, Tree, finished_paths, path_return, solved
from treeagent.search.record import from_record, to_record
from treeagent.search.values import RolloutValue
from treeagent.types import Action, State, Task, Transition
from treeagent.views import (
    AdvantageConfig,
    ImitationConfig,
    PairConfig,
    PolicyTargetConfig,
    ValueTargetConfig,
    advantages,
    imitation_rows,
    policy_rows,
    preference_pairs,
)
from treeagent.views.figures import return_spread, tree_figures
from treeagent.views.values import state_outcome


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


def hall_tree(*, bootstrap: bool = False) -> Tree:
    """Eight chains, some of which win and some of which are cut off."""
    config = SearchConfig(method="best_of_n", limits=Limits(simulations=8), bootstrap=bootstrap)
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


def test_its_end_is_a_value_target_of_zero() -> None:
    tree = hall_tree()
    cut = [(path, node) for path, node in tree.walk() if node.truncated]
    assert cut
    for path, node in cut:
        assert state_outcome(node, path, ValueTargetConfig()) == 0.0


def test_flat_grpo_scores_it_below_the_mean_and_a_pair_rejects_it() -> None:
    tree = hall_tree()
    scored = advantages([tree], AdvantageConfig(kind="grpo"))
    for path in finished_paths(tree):
        won = path[-1].child is not None and path[-1].child.terminated
        assert (scored[id(path[-1])] > 0) == won
    [pair] = preference_pairs(tree, PairConfig(rule="trajectory"))
    assert pair.margin == 1.0


def test_search_backs_up_zero_from_it() -> None:
    config = SearchConfig(limits=Limits(simulations=40), widening=0, c_init=9.0)
    [tree] = asyncio.run(make_search(POLICY, Hall(), config, ConstantValue(GUESS)).run([task()], [3]))
    cut = [path[-1] for path, node in tree.walk() if node.truncated]
    assert cut
    assert {edge.value for edge in cut} == {0.0}


def test_with_bootstrap_the_task_would_go_on() -> None:
    tree = from_record(to_record(hall_tree(bootstrap=True)))
    cut = [(path, node) for path, node in tree.walk() if node.truncated]
    assert cut
    for path, node in cut:
        assert path_return(path) == GUESS
        assert state_outcome(node, path, ValueTargetConfig()) is None
    assert all(path[-1].child is not None and path[-1].child.terminated for path in finished_paths(tree))


@pytest.mark.parametrize("bootstrap", [False, True])
def test_a_success_that_the_limit_ends_is_learned(bootstrap: bool) -> None:
    """The agent is to stay until the limit, and each of two steps pays 1/2. A limit that is not part of the task ends
    nothing."""
    end = Node(State(task(), ()), context_ids=(5,), truncated=True, bootstrap=bootstrap)
    last = Edge(Action("wait", "wait", token_ids=(4,), logprobs=(-1.0,)), 1.0, 1, 0.5, 0.5, end)
    between = Node(State(task(), ()), context_ids=(3,), edges=[last])
    first = Edge(Action("wait", "wait", token_ids=(2,), logprobs=(-1.0,)), 1.0, 1, 1.0, 0.5, between)
    tree = Tree(task(), 0, Node(State(task(), ()), context_ids=(1,), edges=[first]))
    paths = [row.token_ids for row in imitation_rows(tree, ImitationConfig())]
    prompts = [row.prompt_ids for row in policy_rows(tree, PolicyTargetConfig())]
    if bootstrap:
        assert not solved(tree) and not paths and not prompts
    else:
        assert solved(tree) and paths == [(1, 2, 3, 4, 5)] and prompts == [(1,), (1, 2, 3)]


@pytest.mark.parametrize(("bootstrap", "worth"), [(False, 0.0), (True, GUESS)])
def test_a_rollout_into_the_limit(bootstrap: bool, worth: float) -> None:
    waiting = TablePolicy({"wait": 1.0})
    value = RolloutValue(waiting, Hall(), max_steps=9, bootstrap=bootstrap, value=ConstantValue(GUESS))
    [estimate] = asyncio.run(value.estimate([begin(task(), "start")]))
    assert estimate.value == worth

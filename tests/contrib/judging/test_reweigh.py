"""Stored trees under other rewards: tables by hand, the values that a search would have found, and what stays the
same."""

import asyncio
import json
import random
from dataclasses import replace

import pytest
from hand_trees import TASK, edge, hand_tree, node, random_tree
from hypothesis import given
from hypothesis import strategies as st
from toy_search import HashValue, Maze, TablePolicy, task

from treeagent.contrib.judging.components import ComponentSums, Rule, components_of
from treeagent.contrib.judging.config import JudgeConfig, RewardsConfig
from treeagent.contrib.judging.constraint import penalised
from treeagent.contrib.judging.reweigh import rescored, reweighed, with_rewards
from treeagent.search.config import SearchConfig, SearchMethod
from treeagent.search.limits import Limits
from treeagent.search.methods import make_search
from treeagent.search.node import Tree, succeeds
from treeagent.search.record import from_record, to_record
from treeagent.types import Action, State, Transition
from treeagent.views.policy import PolicyTargetConfig, policy_rows

WORDS = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}


def under(tree: Tree, config: RewardsConfig, **rules: Rule) -> Tree:
    [told] = reweighed([tree], config, rules)
    return told


def test_no_weights_leave_every_record_as_it_is() -> None:
    tree = hand_tree()
    assert to_record(under(tree, RewardsConfig())) == to_record(tree)


def test_a_table_by_hand() -> None:
    """r = 2 outcome - 0.1 steps. A1 wins with r = 1.9. A2 is open with V = 0.5, so its Q is -0.1 + 0.5. Of A's four
    visits, two went to A2, one to A1 and one ended at A: Q = 3/4 - 0.1 + (1 * 0.9 + 2 * -0.1) / 4."""
    told = under(hand_tree(), RewardsConfig(weights={"outcome": 2.0, "steps": -0.1}))
    a, _, c, d = told.root.edges
    assert a.child is not None
    won, open_ = a.child.edges
    assert [each.reward for each in (won, open_, a, c)] == pytest.approx([1.9, -0.1, -0.1, -0.1])
    assert (won.value, open_.value) == pytest.approx((1.9, 0.4))
    assert a.value == pytest.approx(0.75 - 0.1 + (0.9 - 0.2) / 4)
    assert c.value == pytest.approx(-0.1)
    assert (d.value, d.reward) == (0.0, 0.0)
    assert succeeds([a, won])
    assert not succeeds([a, open_])


def test_a_success_stays_one_whatever_it_is_paid() -> None:
    told = under(hand_tree(), RewardsConfig(weights={"outcome": 0.1}))
    a = told.root.edges[0]
    assert a.child is not None
    assert a.child.edges[0].reward == pytest.approx(0.1)
    assert succeeds([a, a.child.edges[0]])


def test_distillation_learns_the_states_of_successes_whatever_they_are_paid() -> None:
    """The success takes two steps. It is paid 0.98 by the weights, and (1 - 0.1 * 2) / 1.1 under a multiplier of
    0.1."""
    weighed = under(hand_tree(), RewardsConfig(weights={"outcome": 1.0, "steps": -0.01}))
    costly = penalised(under(hand_tree(), RewardsConfig(budgets={"steps": 1.0})), {"steps": 0.1})
    for tree in (weighed, costly):
        rows = list(policy_rows(tree, PolicyTargetConfig()))
        assert [row.prompt_ids for row in rows] == [(1, 2), (1, 2, 10, 11, 20, 21)]


@pytest.mark.parametrize(
    "hacked, rewards, processes, first, last", [(1, (1, -1), (0.4, -0.4), 0, -0.7), (0, (1, 2), (0.4, 0.2), 1.8, 1.1)]
)
def test_a_judge_without_weights_leaves_process_rewards_in_the_values(
    hacked: float, rewards: tuple[float, float], processes: tuple[float, float], first: float, last: float
) -> None:
    """Two steps pay outcomes of 1 and 2 and process rewards of 0.4 and 0.2, so that with η = 1/2 the Q of the last step
    is 1.1 and that of the first is 0.7 + 1.1. If the end is hacked, the last step takes back both, as in a search."""
    won = edge("A1", (30,), 2, 2.2, node((40,), end="terminated"), 2.0)
    start = edge("A", (10,), 2, 3.6, node((20,), won), 1.0)
    start.process, won.process, won.components = 0.4, 0.2, {"judge": 1.0, "hacked": hacked}
    config = RewardsConfig(judge=JudgeConfig("model", ("Right?",)))
    [told] = rescored([Tree(TASK, 0, node((1,), start))], config, {}, 0.5)
    [a] = told.root.edges
    assert a.child is not None
    [a1] = a.child.edges
    assert (a.reward, a1.reward) == pytest.approx(rewards)
    assert (a.process, a1.process) == pytest.approx(processes)
    assert (a.value, a1.value) == pytest.approx((first, last))
    a1.components = {**a1.components, "hacked": 0.0}  # a judge that finds the end fair restores the values
    [fair] = rescored([told], config, {}, 0.5)
    assert fair.root.edges[0].value == pytest.approx(1.8)


def test_rewards_come_from_components_and_not_from_rewards() -> None:
    """So weighing twice equals weighing once with the last weights."""
    tree, last = hand_tree(), RewardsConfig(weights={"outcome": 1.0, "tokens": -0.01})
    twice = under(under(tree, RewardsConfig(weights={"steps": 3.0})), last)
    once = under(tree, last)
    for one, two in zip(once.nodes(), twice.nodes(), strict=True):
        for left, right in zip(one.edges, two.edges, strict=True):
            assert (left.reward, left.value_sum) == pytest.approx((right.reward, right.value_sum))
    assert to_record(under(once, last)) == to_record(once)


@given(st.randoms(use_true_random=False))
def test_an_old_tree_loads_without_components_and_a_new_one_with_them(shuffler: random.Random) -> None:
    tree = random_tree(shuffler)
    record = json.loads(json.dumps(to_record(tree)))
    assert not any("components" in each for row in record["nodes"] for each in row["edges"])
    told = under(from_record(record), RewardsConfig(weights={"outcome": 1.0}))
    again = from_record(json.loads(json.dumps(to_record(told))))
    for left, right in zip(told.nodes(), again.nodes(), strict=True):
        assert [each.components for each in left.edges] == [each.components for each in right.edges]


def test_a_rule_that_gives_nothing_any_more_takes_its_component_away() -> None:
    """A and its two calls were paid 1 each by an earlier rule; the new one is silent about A1 and pays A2 half."""
    tree, weights = hand_tree(), {"brief": 1.0}
    told = under(tree, RewardsConfig(weights=weights, rules={"brief": "mine:brief"}), brief=lambda step: 1.0)
    values = {"A1": None, "A2": 0.5}
    again = under(
        told,
        RewardsConfig(weights=weights, rules={"brief": "mine:brief"}),
        brief=lambda step: values.get(step.action.text, 1.0),
    )
    a = again.root.edges[0]
    assert a.child is not None
    won, open_ = a.child.edges
    assert [each.reward for each in (a, won, open_)] == [1.0, 0.0, 0.5]
    assert "brief" not in won.components


class Priced:
    """A maze in which a step also costs a price that depends on the last letter of the call."""

    def __init__(self, maze: Maze, weight: float) -> None:
        self.maze, self.weight = maze, weight

    async def reset(self, one: object) -> State:
        return await self.maze.reset(one)  # type: ignore[arg-type]

    async def step(self, state: State, action: Action) -> Transition:
        from dataclasses import replace

        came = await self.maze.step(state, action)
        price = (ord(str(action.call)[-1]) % 7) / 7
        outcome = came.reward or 0.0
        return replace(
            came,
            reward=outcome - self.weight * price,
            components={"outcome": outcome, "price": price, "steps": 1.0},
        )


@pytest.mark.parametrize("method", ["best_of_n", "mcts", "beam", "random_expand"])
def test_values_are_those_that_the_same_visits_would_have_summed(method: SearchMethod) -> None:
    """Checked by backing up from the leaves again, visit by visit, in trees without revisits of exhausted edges."""
    config = SearchConfig(Limits(simulations=12), method=method, skip_exhausted=False, discount=0.9, widening=0)
    dynamics = Priced(Maze(end_share=0.2, limit_share=0.1), weight=0.5)
    search = make_search(TablePolicy(WORDS), dynamics, config, HashValue())
    [tree] = asyncio.run(search.run([task()], [3]))
    told = under(tree, RewardsConfig(weights={"outcome": 1.0, "price": -2.0}))
    assert any(each.components.get("price") for here in tree.nodes() for each in here.edges)
    for here in told.nodes():
        for one in here.edges:
            if one.child is None or not one.visits:
                continue
            below = [each for each in one.child.edges if each.visits]
            ended = one.visits - sum(each.visits for each in below)
            beyond = ended * one.child.leaf_value(one.reward) + sum(each.value_sum for each in below)
            assert one.value_sum == pytest.approx(one.visits * (one.reward or 0.0) + 0.9 * beyond)


def test_a_cost_has_values_of_its_own() -> None:
    tree = hand_tree()
    cost = with_rewards(tree, lambda each: components_of(each)["tokens"], blank=True)
    a, *_ = cost.root.edges
    assert a.value == pytest.approx(2 + (1 * 1 + 2 * 2) / 4)
    assert tree.root.edges[0].value == 0.75


def test_each_component_is_divided_by_its_spread_over_the_paths_of_a_task() -> None:
    """The three finished paths have 3, 2 and 1 tokens, with standard deviation sqrt(2/3), and outcomes 1, 0, 0, with
    sqrt(2)/3."""
    tree = hand_tree()
    for here in tree.nodes():
        here.bootstrap = False
    told = under(tree, RewardsConfig(weights={"tokens": 1.0, "outcome": 1.0}, normalise="std"))
    c = told.root.edges[2]
    assert c.reward == pytest.approx(1 / (2 / 3) ** 0.5)
    a = told.root.edges[0]
    assert a.child is not None
    assert a.child.edges[0].reward == pytest.approx(1 / (2 / 3) ** 0.5 + 3 / 2**0.5)


def test_tasks_that_share_an_id_but_not_their_data_have_spreads_of_their_own() -> None:
    config = RewardsConfig(weights={"tokens": 1.0}, normalise="std")
    trees = [hand_tree(), hand_tree()]
    del trees[1].root.edges[0]
    alone = [to_record(rescored([tree], config, {})[0]) for tree in trees]
    assert list(map(to_record, rescored(trees, config, {}))) != alone
    for number, tree in enumerate(trees):
        tree.task = replace(tree.task, data={"map": number})
    alone = [to_record(rescored([tree], config, {})[0]) for tree in trees]
    assert list(map(to_record, rescored(trees, config, {}))) == alone


def test_a_schedule_is_a_straight_line_from_the_first_to_the_last_round() -> None:
    config = RewardsConfig(weights={"outcome": 1.0, "format": 2.0}, schedule={"format": (1.0, 0.0)})
    for progress, wanted in ((0.0, 2.0), (0.25, 1.5), (1.0, 0.0)):
        assert config.at(progress).weights == {"outcome": 1.0, "format": wanted}


def test_figures_are_means_over_paths_and_of_the_axes_over_calls() -> None:
    won = edge("A", (1,), 1, 1.0, node((3,), end="terminated"), 1.0)
    lost = edge("B", (2,), 1, 0.0, node((4,), end="terminated"))
    won.components, lost.components = {"when": 1.0, "malformed": 0.0}, {"malformed": 1.0}
    tree = Tree(hand_tree().task, 0, node((9,), won, lost))
    sums, without = ComponentSums(), ComponentSums()
    sums.add(tree)
    without.add(hand_tree())
    assert sums.figures() == {"component/malformed": 0.5, "component/when": 1.0}
    assert without.figures() == {}

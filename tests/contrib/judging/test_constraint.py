"""Cost budgets in a two-state CMDP whose optimal multiplier has a closed form."""

import math

import pytest

from treeagent.contrib.judging.constraint import cost_tree, mean_costs, next_multiplier, penalised, within_budgets
from treeagent.search.decide import best_path
from treeagent.search.node import Edge, Node, Tree, path_return
from treeagent.search.record import to_record
from treeagent.types import Action, Message, State, Task
from treeagent.views.advantages import AdvantageConfig, advantages
from treeagent.views.pairs import PairConfig, preference_pairs

TASK = Task("cmdp", "go")
SAFE = 0.4
"""The return of stopping at once."""


def end() -> Node:
    return Node(State(TASK, (Message("user", "end"),), ended=True), context_ids=(9,), terminated=True)


def cmdp() -> Tree:
    """State s0: stop for a reward of 0.4 at no cost, or go to s1 at a cost of 1. State s1: finish for a reward of 1."""
    finish = Edge(Action("finish", "finish", token_ids=(3,), logprobs=(-0.1,)), 1.0, 1, 1.0, 1.0, end())
    there = Node(State(TASK, (Message("user", "s1"),)), context_ids=(8,), edges=[finish])
    go = Edge(Action("go", "go", token_ids=(1,), logprobs=(-0.1,)), 0.5, 1, 1.0, 0.0, there, components={"risk": 1.0})
    stop = Edge(Action("stop", "stop", token_ids=(2,), logprobs=(-0.1,)), 0.5, 1, SAFE, SAFE, end())
    return Tree(TASK, 0, Node(State(TASK, (Message("user", "s0"),)), context_ids=(7,), edges=[go, stop]))


def lagrangian(tree: Tree, multiplier: float, kind: str = "q") -> tuple[float, float]:
    """The advantages of going and of stopping."""
    config = AdvantageConfig(kind=kind)  # type: ignore[arg-type]
    scored = advantages([tree], config, [(multiplier, [cost_tree(tree, "risk")])])
    go, stop = tree.root.edges
    return scored.get(id(go), 0.0), scored.get(id(stop), 0.0)


def test_the_multiplier_steps_towards_its_budget_and_stops_at_0() -> None:
    assert next_multiplier(0.5, 0.1, mean_cost=1.0, budget=0.25) == pytest.approx(0.575)
    assert next_multiplier(0.01, 0.1, mean_cost=0.0, budget=0.25) == 0.0


def test_the_mean_cost_is_over_finished_paths() -> None:
    assert mean_costs([cmdp()], ["risk", "steps"]) == {"risk": 0.5, "steps": 1.5}


@pytest.mark.parametrize("multiplier", [0.0, 0.3, 0.6, 2.0])
def test_advantages_are_those_of_the_lagrangian(multiplier: float) -> None:
    """A_r of going is (1 - 0.4) / 2 and A_c is 1/2. Those of stopping are the opposite."""
    go, stop = lagrangian(cmdp(), multiplier)
    assert go == pytest.approx((0.3 - multiplier * 0.5) / (1 + multiplier))
    assert stop == pytest.approx(-go)


def test_gae_prefers_nothing_where_all_episodes_cost_the_same() -> None:
    """Two episodes of two steps, each step at a cost of 1 and a return of 1: V_c is 2 and then 1."""
    tree = cmdp()
    chains = [cmdp().root.edges[0], cmdp().root.edges[0]]
    tree.root.edges = chains
    for first in chains:
        assert first.child is not None
        first.child.value, first.child.edges[0].components = 1.0, {"risk": 1.0}
    tree.root.value = 1.0
    assert [node.value for node in cost_tree(tree, "risk").nodes()][:2] == [2.0, 1.0]
    scored = advantages([tree], AdvantageConfig(kind="gae"), [(0.5, [cost_tree(tree, "risk")])])
    assert [scored.get(id(edge), 0.0) for node in tree.nodes() for edge in node.edges] == pytest.approx([0.0] * 4)


def test_group_advantages_standardise_rewards_and_costs_each() -> None:
    """Both rewards and costs are ±1/√2 over two paths, so going gets (1 - λ) / (1 + λ) times 1/√2."""
    go, stop = lagrangian(cmdp(), 3.0, "grpo")
    assert go == pytest.approx(-0.5 / 2**0.5)
    assert stop == pytest.approx(0.5 / 2**0.5)


@pytest.mark.parametrize("budget", [0.2, 0.5, 0.9, 0.97])
def test_dual_ascent_reaches_the_closed_form(budget: float) -> None:
    """The policy π(go) = σ((A_go - A_stop) / τ) keeps the mean cost at d where (0.6 - λ) / (1 + λ) = τ logit(d). So λ*
    = (0.6 - τ logit d) / (1 + τ logit d), or 0 if the budget does not bind."""
    tree, temperature = cmdp(), 0.2
    logit = temperature * math.log(budget / (1 - budget))
    wanted = max(0.0, (1 - SAFE - logit) / (1 + logit))
    multiplier = 0.0
    for _ in range(300):
        go, stop = lagrangian(tree, multiplier)
        mean_cost = 1 / (1 + math.exp(-(go - stop) / temperature))
        multiplier = next_multiplier(multiplier, 0.5, mean_cost, budget)
    assert multiplier == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(("multiplier", "chosen"), [(0.0, "go"), (0.5, "go"), (0.6, None), (0.7, "stop"), (3, "stop")])
def test_siblings_are_preferred_by_the_lagrangian(multiplier: float, chosen: str | None) -> None:
    """Going is worth (1 - λ) / (1 + λ), stopping 0.4 / (1 + λ): equal at λ* = 0.6."""
    tree = cmdp()
    before = to_record(tree)
    steered = penalised(tree, {"risk": multiplier})
    go, stop = steered.root.edges
    assert go.value == pytest.approx((1 - multiplier) / (1 + multiplier))
    assert stop.value == pytest.approx(SAFE / (1 + multiplier))
    pairs = list(preference_pairs(steered, PairConfig(min_margin=1e-6)))
    assert [pair.chosen.text for pair in pairs] == ([chosen] if chosen else [])
    assert to_record(tree) == before
    for path, node in steered.walk():
        if path and node.terminated:
            assert path_return(path) == pytest.approx(path[0].value)


@pytest.mark.parametrize(("budget", "wanted"), [(1.0, ["go", "finish"]), (0.5, ["stop"])])
@pytest.mark.parametrize("decision", ["leaf", "visits", "value"])
def test_a_plan_over_budget_is_not_taken(budget: float, wanted: list[str], decision: str) -> None:
    tree = cmdp()
    tree.root.edges[0].visits, tree.root.edges[0].value_sum = 2, 2.0

    def allowed(path: object) -> bool:
        return within_budgets({"risk": sum(each.components.get("risk", 0.0) for each in path)}, {"risk": budget})  # type: ignore[attr-defined]

    path = best_path(tree, decision, allowed=allowed)  # type: ignore[arg-type]
    assert [edge.action.text for edge in path] == wanted


def test_where_every_plan_is_over_budget_none_is_taken() -> None:
    assert best_path(cmdp(), allowed=lambda path: False) == []
    assert best_path(cmdp(), "visits", allowed=lambda path: False) == []

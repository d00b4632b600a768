"""Tiers that judge ends: the next tier is asked only if the one before is uncertain, and a planted hack is not paid."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hand_trees import hand_tree
from judge_server import answering, judge_server
from paid_lake import PAY, PaidLake
from pydantic import ValidationError

from benchmarks.planted import PAID
from treeagent.config import load_config
from treeagent.contrib.judging.agreement import Assessments, cohen_kappa
from treeagent.contrib.judging.assess import assessor
from treeagent.contrib.judging.cascade import Assessor, deciding_tier
from treeagent.contrib.judging.components import Step, require_names
from treeagent.contrib.judging.config import JudgeConfig, RewardsConfig
from treeagent.contrib.judging.judge import HACKED
from treeagent.contrib.judging.rescore import assess_trees
from treeagent.envs import EnvDynamics
from treeagent.pipeline.build import scored
from treeagent.search import Limits, SearchConfig, make_search
from treeagent.search.node import Tree, finished_paths, path_return
from treeagent.types import Action, Message, Proposal, State, Task, UserError

JUDGE = JudgeConfig(model="judge", items=("Is the agent at G?",), votes=1)
TIERS = RewardsConfig(tiers=("rule", "learned"), rule="looks")
END = State(Task("task", "do it"), (Message("user", "do it"),))


@pytest.mark.parametrize(
    ("rule", "value", "said", "decides"),
    [
        (0.9, 0.1, {"verdict": 0.9}, "rule"),  # certain: the learned tier is not asked
        (0.5, 0.1, {"learned": 0.1, "verdict": 0.1}, "learned"),
        (None, 0.4, {"learned": 0.4, "verdict": 0.4}, "learned"),  # the last tier may be uncertain
        (0.5, None, {"verdict": 0.5}, "rule"),
        (None, None, {}, None),
    ],
)
def test_the_next_tier_is_asked_where_the_one_before_abstains_or_is_uncertain(
    rule: float | None, value: float | None, said: dict[str, float], decides: str | None
) -> None:
    async def learned() -> float | None:
        return value

    components = {} if rule is None else {"looks": rule}
    found = asyncio.run(Assessor(TIERS).assess(END, components, learned))
    assert found == said
    assert deciding_tier(components | found, TIERS) == decides


def test_a_rule_that_abstains_now_no_longer_decides_about_a_stored_end() -> None:
    tree = hand_tree()
    for path in finished_paths(tree):
        path[-1].components = {"looks": 1.0}
        assert path[-1].child is not None
        path[-1].child.value = 0.2
    tree.budget.estimates = 1
    asyncio.run(assess_trees([tree], Assessor(TIERS), {"looks": lambda step: None}))
    assert {path[-1].components["verdict"] for path in finished_paths(tree)} == {0.2}


@pytest.mark.parametrize(("trust", "verdict"), [(1.0, 0.0), (0.5, 0.3), (0.0, 0.6)])
def test_a_reward_model_is_as_certain_as_its_audit_allows(trust: float, verdict: float) -> None:
    """The model is sure of a failure. With trust 0.5 its verdict is 0.5 * 0 + 0.5 * 0.6, which is uncertain, so a next
    tier would be asked."""

    async def learned() -> float | None:
        return 0.0

    config = replace(TIERS, learned="model", uncertain=(0.2, 1.0))
    found = asyncio.run(Assessor(config, trust=trust).assess(END, {}, learned))
    assert found == {"learned": 0.0, "verdict": pytest.approx(verdict)}


def arrived(step: Step) -> float | None:
    """A rule that judges the ends made by the lake itself, and abstains if the steps ran out."""
    return step.reward if step.terminated else None


class Wanders:
    """Walks in random directions."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        moves = tuple(Action(name, name) for name in ("left", "down", "right", "up"))
        return [Proposal(actions=moves)] * len(states)


def searched(rewards: RewardsConfig, folder: Path) -> Tree:
    env = PaidLake()
    config = replace(load_config(None, ["environment.max_steps=4"]), rewards=rewards)
    played = EnvDynamics(env, max_steps=4)
    by = scored(played, played, config, ends=assessor(rewards, folder, "collect"))
    search = make_search(Wanders(), by, SearchConfig(Limits(simulations=80), candidates=4))
    [tree] = asyncio.run(search.run(env.tasks("train", 1), [0]))
    assert not tree.error, tree.error
    return tree


def best(tree: Tree) -> float:
    return max(path_return(path) for path in finished_paths(tree))


def test_the_cascade_stops_a_hack_that_the_rule_alone_pays_for(tmp_path: Path) -> None:
    rule = f"{__name__}:arrived"
    alone = searched(RewardsConfig(weights={"arrived": 1.0, "process": 1.0}, rules={"arrived": rule}), tmp_path)
    assert best(alone) == pytest.approx(4 * PAY)  # by walking to and fro, because nobody arrives in four steps

    with judge_server(answering(lambda prompt, question: question == HACKED and PAID in prompt)) as server:
        rewards = RewardsConfig(
            weights={"verdict": 1.0, "process": 1.0},
            rules={"arrived": rule},
            rule="arrived",
            tiers=("rule", "judge"),
            judge=replace(JUDGE, url=server.url),
        )
        tree = searched(rewards, tmp_path)
        asked = len(server.asked)
    ends = [path[-1] for path in finished_paths(tree)]
    unsure = [edge for edge in ends if "arrived" not in edge.components]
    assert all(edge.hacked for edge in unsure) and 0 < len(unsure) < len(ends)
    assert best(tree) <= 3 * PAY  # only the pay on the way to a hole is left, where the rule is certain
    assert {path_return(path) for path in finished_paths(tree) if path[-1].hacked} == {0.0}
    assert max(edge.value for edge in tree.root.edges) < max(edge.value for edge in alone.root.edges)
    found = Assessments(rewards)
    found.add(tree)
    figures = found.figures()
    assert figures["tier/judge"] == len(unsure) / len(ends) and figures["tier/none"] == 0.0
    assert asked <= len(unsure)  # equal ends are asked about only once
    assert figures["agreement/judge_verifier"] == 1.0


def stays(step: Step) -> float | None:
    """A rule that can be hacked: it counts every agent that has not fallen as successful, with certainty."""
    return 0.0 if step.terminated and not step.reward else 1.0


def test_spot_checks_find_a_rule_that_is_hacked_and_change_no_reward(tmp_path: Path) -> None:
    rule = f"{__name__}:stays"
    with judge_server(answering(lambda prompt, question: question == HACKED)) as server:
        plain = RewardsConfig(
            weights={"verdict": 1.0},
            rules={"stays": rule},
            rule="stays",
            tiers=("rule", "judge"),
            judge=replace(JUDGE, url=server.url),
        )
        without = searched(plain, tmp_path)
        assert not server.asked  # the rule is always certain
        whole, some = (replace(plain, spot_checks=share) for share in (1.0, 0.3))
        every, few, again = (searched(config, tmp_path) for config in (whole, some, some))
    ends, ours = list(finished_paths(every)), list(finished_paths(without))
    assert list(map(path_return, ends)) == list(map(path_return, ours)) and not any(path[-1].hacked for path in ends)
    checked = [path[-1].components.get("spot_check") for path in finished_paths(few)]
    assert 0 < len(checked) - checked.count(None) < len(checked)
    assert checked == [path[-1].components.get("spot_check") for path in finished_paths(again)]
    # The judge calls every end a hack, and the rule pays for some of them.
    paid = [path[-1].components["verdict"] == 1.0 for path in ends]
    found = Assessments(whole)
    found.add(every)
    assert found.figures()["agreement/rule_judge"] == pytest.approx(1 - sum(paid) / len(paid))
    assert found.figures()["agreement/rule_judge_ends"] == len(paid) and found.figures()["tier/rule"] == 1.0
    [doubt] = found.doubts()
    assert every.task.id in doubt and f"{sum(paid)} of {len(paid)}" in doubt
    unchecked = Assessments(plain)
    unchecked.add(without)
    assert not unchecked.doubts()


def test_agreement_with_the_verifier_and_with_people_by_hand(tmp_path: Path) -> None:
    # 10 ends: both say yes 4, both no 3, only the first 2, only the second 1: p_o = 0.7, p_e = 0.6 * 0.5 + 0.4 * 0.5.
    pairs = [(True, True)] * 4 + [(False, False)] * 3 + [(True, False)] * 2 + [(False, True)]
    assert cohen_kappa(pairs) == pytest.approx((0.7 - 0.5) / 0.5)
    assert cohen_kappa([(True, True)] * 3) is None and cohen_kappa([]) is None

    tree = searched(RewardsConfig(), tmp_path)
    ends = list(finished_paths(tree))
    for place, path in enumerate(ends):
        path[-1].components = {"outcome": 0.0, "judge": 1.0 if place == 0 else 0.25}
    found = Assessments(RewardsConfig(judge=JUDGE))
    found.add(tree)
    figures = found.figures()
    assert figures["agreement/judge_verifier"] == pytest.approx(1 - 1 / len(ends))
    assert figures["agreement/judge_verifier_kappa"] == pytest.approx(0.0)

    for path in ends:  # a reward model without a judge or tiers
        path[-1].components = {"outcome": 0.0, "learned": path[-1].components["judge"]}
    alone = Assessments(RewardsConfig(learned="model"))
    alone.add(tree)
    assert alone.figures()["agreement/learned_verifier"] == pytest.approx(1 - 1 / len(ends))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tiers": ("rule", "oracle")}, "judge"),
        ({"tiers": ("learned", "rule")}, "order"),
        ({"tiers": ("rule", "rule")}, "order"),
        ({"tiers": ("rule", "judge")}, "judge.model"),
        ({"tiers": ("rule",), "judge": JUDGE}, "does not fit the judge"),
        ({"tiers": ("rule",), "uncertain": (0.8, 0.2)}, "lower one first"),
        ({"tiers": ("rule",), "spot_checks": 0.1}, "spot_checks"),
        ({"tiers": ("judge",), "judge": JUDGE, "spot_checks": 0.1}, "spot_checks"),
        ({"tiers": ("rule",), "weights": {"spot_check": 1.0}}, "spot_check"),
        ({"tiers": ("rule",), "uncertain": (float("nan"), 1.0)}, "uncertain"),
        ({"tiers": ("rule",), "rule": "verdict"}, "later tiers"),
        ({"weights": {"verdict": 1.0}}, "name the tiers"),
        ({"tiers": ("rule",), "weights": {"learned": 1.0}}, "rewards.learned"),
        ({"tiers": ("rule",), "learned": "model"}, "learned is set"),
        ({"budgets": {"verdict": 1.0}}, "must not know"),
        ({"rules": {"verdict": "mine:verdict"}}, "component already"),
    ],
)
def test_tiers_that_make_no_sense_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RewardsConfig(**settings)


def test_a_rule_that_no_step_has_is_refused() -> None:
    require_names(RewardsConfig(tiers=("rule",)), ())
    with pytest.raises(UserError, match=r"rewards\.rule"):
        require_names(TIERS, ())

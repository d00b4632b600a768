"""Rewards made of parts, cascades, budgets and a reward model's word, by hand-computed numbers."""

import asyncio
from pathlib import Path

import pytest
from hand_trees import edge, node
from judged_steps import place, step

from treeagent.contrib.judging.budgets import Budgets, BudgetsOptions, mean_costs, multipliers
from treeagent.contrib.judging.cascade import Cascade
from treeagent.contrib.judging.learned import Learned
from treeagent.contrib.judging.weighted import components
from treeagent.pipeline.rewards import Step, make_reward
from treeagent.search.node import Tree
from treeagent.search.record import to_record
from treeagent.store import write_shard
from treeagent.types import Task, UserError

END = step(reward=1.0, end="terminated")


def unsure(step: Step) -> float | None:
    return {"sure": 0.9, "unsure": 0.5}.get(step.action.text)


def test_parts_are_weighed_and_summed(tmp_path: Path) -> None:
    """An end: 2 · 1 - 0.1 · 2 sampled tokens + 3 · 0.25 from the environment."""
    weights = {"outcome": 2.0, "tokens": -0.1, "progress": 3.0}
    reward = make_reward(place(tmp_path, "weighted", weights=weights))
    with_info = step(reward=1.0, end="terminated", info={"components": {"progress": 0.25}})
    found = asyncio.run(reward.score([with_info, step(invalid=True)]))
    assert found == pytest.approx([2 - 0.2 + 0.75, -0.2])
    assert components(step(invalid=True)) == {"outcome": 0.0, "steps": 1.0, "tokens": 2.0, "invalid": 1.0}


def test_the_next_tier_is_asked_where_the_one_before_abstains_or_is_uncertain(tmp_path: Path) -> None:
    """The audit trusts the model by 0.5, so that its V = 1 counts as 0.5 · 1 + 0.5 · 0.5 = 0.75, which is certain."""
    cascade = make_reward(place(tmp_path, "cascade", rule=f"{__name__}:unsure"))
    assert isinstance(cascade, Cascade)
    asked = list[str]()

    class Model:
        cap = 0.5

        async def verdicts(self, ends: list[Step]) -> list[float | None]:
            asked.extend(end.action.text for end in ends)
            return [1.0 if end.action.text == "unsure" else None for end in ends]

    class Person:
        async def verdicts(self, ends: list[Step]) -> list[float | None]:
            asked.extend(f"judge {end.action.text}" for end in ends)
            return [None for _ in ends]

    cascade.learned, cascade.judge = Model(), Person()  # type: ignore[assignment]
    ends = [step(call, end="terminated") for call in ("sure", "unsure", "silent")]
    assert asyncio.run(cascade.verdicts(ends)) == [0.9, 0.75, None]
    assert asked == ["unsure", "silent", "judge silent"]
    with pytest.raises(UserError, match="at least one"):
        make_reward(place(tmp_path, "cascade"))


def test_a_reward_model_weighs_no_more_than_its_audit_allows(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="treeagent reward"):
        make_reward(place(tmp_path, "learned", model=str(tmp_path)))
    (tmp_path / "audit.json").write_text('{"cap": 0.4}')
    learned = make_reward(place(tmp_path, "learned", model=str(tmp_path)))
    assert isinstance(learned, Learned) and learned.cap == 0.4


def costly_tree(*lengths: int) -> Tree:
    """A tree with one path of each length, which ends with a reward of 1."""
    root = node((1,))
    for number, length in enumerate(lengths):
        below = edge(f"end {number}", (2,), 1, 1.0, node((3,), end="terminated"), 1.0)
        for _ in range(length - 1):
            below = edge(f"on {number}", (4,), 1, 1.0, node((5,), below))
        root.edges.append(below)
    return Tree(Task("task", "x"), 0, root)


def test_multipliers_rise_while_costs_exceed_the_budget() -> None:
    """Paths of 2 and 4 steps cost 3 on average, 1 more than the budget: λ = 0.5 · 1. A round at 1 takes 0.5 back."""
    means = mean_costs([costly_tree(2, 4)])
    assert means == {"steps": 3.0, "tokens": 3.0, "invalid": 0.0}
    options = BudgetsOptions({"steps": 2.0}, rate=0.5)
    assert multipliers(options, [means]) == {"steps": 0.5}
    assert multipliers(options, [means, {"steps": 1.0}, {"steps": 0.0}]) == {"steps": 0.0}


def test_a_round_is_paid_by_the_rounds_before_it(tmp_path: Path) -> None:
    """λ = 0.5 after the first round: an end pays (1 - 0.5 · 1) / 1.5."""
    (tmp_path / "trees").mkdir()
    for name in ("collect-1", "collect-2"):
        write_shard(tmp_path / "trees", name, 0, [to_record(costly_tree(2, 4))])
    options = {"budgets": {"steps": 2.0}, "rate": 0.5}
    found = [make_reward(place(tmp_path, "budgets", f"collect-{number}", **options)) for number in (1, 2, 3)]
    assert [each.multipliers["steps"] for each in found if isinstance(each, Budgets)] == [0.0, 0.5, 1.0]
    assert asyncio.run(found[1].score([END])) == pytest.approx([0.5 / 1.5])

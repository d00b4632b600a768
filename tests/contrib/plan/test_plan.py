"""A plan measures a few items of every stage and multiplies them."""

from pathlib import Path

import pytest
from command import CONFIG

from treeagent.config import load_config
from treeagent.contrib.plan.measure import plan
from treeagent.pipeline.progress import QuietProgress

SETTINGS = [
    "workers=1",
    "collect.tasks=80",
    "evaluate.tasks=40",
    'evaluate.modes=["greedy"]',
    "adapt.rounds=3",
]


@pytest.mark.parametrize("rounds", [False, True])
def test_each_stage_has_its_items_and_its_cost(finished_run: Path, rounds: bool) -> None:
    config = load_config(
        CONFIG, [*SETTINGS, 'update.methods=["grpo"]', 'adapt.methods=["grpo"]', "update.grpo.max_steps=50"]
    )
    costs = {cost.name: cost for cost in plan(config, rounds, finished_run / "checkpoints" / "base", QuietProgress())}
    assert list(costs) == ["search", "grpo", "evaluation, greedy"]
    count = 3 if rounds else 1
    assert [cost.items for cost in costs.values()] == [80 * count, 50 * count, 80 if rounds else 40]
    assert all(cost.seconds > 0 for cost in costs.values())
    assert costs["search"].tokens > costs["search"].steps > 0

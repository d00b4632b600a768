import re
import shutil
from pathlib import Path

import pytest
from command import CONFIG, treeagent

from treeagent.agent.checkpoint import Checkpoint, save_checkpoint
from treeagent.generators.config import ScratchConfig
from treeagent.generators.scratch import random_model, train_tokenizer


def test_a_plan_by_formulas_lists_the_stages_of_the_command_and_its_price() -> None:
    once = treeagent("plan", CONFIG, "--no-measure", "--price", "3")
    assert once.returncode == 0, once.stderr
    for stage in ("demonstrations", "warm start", "search", "value head", "updates", "evaluation", "sum"):
        assert re.search(rf"^{stage} ", once.stdout, re.MULTILINE), stage
    assert "3 an hour" in once.stdout
    rounds = treeagent("plan", CONFIG, "adapt.rounds=2", "--no-measure", "--command", "train")
    assert "round 2: search" in rounds.stdout


def test_a_plan_warns_of_what_will_not_fit_and_names_settings_that_do() -> None:
    wide = ["update.rft.batch_size=65536", "policy.scratch.width=2048", "warm_start.max_tokens=4096"]
    told = treeagent("plan", CONFIG, "--no-measure", 'update.methods=["rft"]', *wide)
    assert re.search(r"rft will not fit.*update\.rft\.batch_size=\d+ training\.accumulation=\d+", told.stdout)


def test_a_plan_of_nothing_is_one_sentence() -> None:
    told = treeagent("plan", "no-such-recipe")
    assert told.returncode == 2
    assert "no-such-recipe" in told.stderr


def test_beside_the_plan_of_a_run_stands_what_it_took(finished_run: Path) -> None:
    told = treeagent("plan", finished_run, "--no-measure")
    assert told.returncode == 0, told.stderr
    assert "taken so far" in told.stdout
    taken = re.findall(r"^  taken +(.+)", told.stdout, re.MULTILINE)
    assert len(taken) > 4 and any(re.search(r"\d", line) for line in taken), told.stdout


def test_a_policy_whose_trees_teach_nothing_is_planned_by_formulas(tmp_path: Path) -> None:
    """An untrained model makes no call, so that the measurement finds no pair to learn from."""
    shape = ScratchConfig(width=16, heads=2, layers=1, vocabulary=300, context=512)
    tokenizer = train_tokenizer(["Thought: earn Action: go on"] * 5, shape)
    save_checkpoint(Checkpoint(random_model(tokenizer, shape, 0), tokenizer), tmp_path / "base")
    few = ["workers=1", "environment.max_steps=1", "policy.max_new_tokens=4", "search.limits={simulations=2}"]
    few += ["adapt.rounds=1", "collect.tasks=2", "evaluate.tasks=2", "update.validation_tasks=2"]
    chosen = ['adapt.methods=["dpo"]', 'evaluate.modes=["greedy"]']
    told = treeagent("plan", CONFIG, "--command", "train", "--checkpoint", tmp_path / "base", *few, *chosen)
    assert told.returncode == 0, told.stderr
    assert re.search(r"^round 1: updates +[\d,]+ +[\d,]+", told.stdout, re.MULTILINE), told.stdout


@pytest.mark.slow
def test_a_measured_plan_leaves_nothing_behind(tmp_path: Path) -> None:
    shutil.copy(CONFIG, tmp_path / "mine.toml")
    told = treeagent("plan", "mine.toml", "warm_start.training.max_steps=60", "workers=1", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert re.search(r"^evaluation +[\d,]+", told.stdout, re.MULTILINE)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.toml"]

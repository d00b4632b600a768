"""Stages of a curriculum: by hand from successes, and in a small run on two lengths of tasks."""

from pathlib import Path

import pytest
from command import CONFIG

from treeagent.config import load_config
from treeagent.contrib.curriculum.loop import Curriculum, Stage, read_curriculum, train
from treeagent.pipeline.folder import Run
from treeagent.pipeline.trees import stored_trees
from treeagent.types import UserError

SMALL = [
    "workers=1", "adapt.rounds=1", "collect.tasks=2", "update.validation_tasks=2", "update.rft.max_steps=1",
    "search.limits.simulations=4", "evaluate.tasks=2", 'evaluate.modes=["greedy"]',
]  # fmt: skip
THREE = Curriculum((Stage("one"), Stage("two"), Stage("three")), advance_at=0.7, fall_back_at=0.3)


@pytest.mark.parametrize(
    ("stage", "successes", "chosen"),
    [
        (0, [0.69, 0.0, 0.0], (0, 0.69)),
        (0, [0.7, 0.0, 0.0], (1, 0.0)),  # just enough to go on, and no way back in the same round
        (0, [0.7, 0.9, 0.1], (2, 0.1)),  # mastered stages are passed
        (2, [0.0, 0.0, 0.9], (2, 0.9)),  # there is no stage after the last
        (1, [0.9, 0.3, 0.0], (1, 0.3)),  # just enough to stay
        (1, [0.9, 0.29, 0.0], (0, 0.9)),
        (0, [0.0, 0.9, 0.9], (0, 0.0)),  # nor one before the first
    ],
)
def test_a_round_goes_on_by_success_and_falls_back_by_failure(
    stage: int, successes: list[float], chosen: tuple[int, float]
) -> None:
    assert THREE.next_stage(stage, successes.__getitem__) == chosen


def test_a_round_searches_the_tasks_of_its_stage(tmp_path: Path, finished_run: Path) -> None:
    """The policy solves no task, so that it stays in the first stage, until success of 0 is enough."""
    file, policy = tmp_path / "stages.toml", finished_run / "checkpoints" / "base"
    for advance_at, stage in ((0.5, 0), (0.0, 1)):
        file.write_text(
            f"advance_at = {advance_at}\nfall_back_at = 0.0\n"
            '[[stages]]\nname = "small"\noptions = { products = 100 }\n[[stages]]\nname = "whole"\n'
        )
        config = load_config(CONFIG, SMALL)
        rows = train(config, tmp_path / str(stage), read_curriculum(file), policy)
        run = Run.open(tmp_path / str(stage))
        assert run.facts("curriculum-1")["index"] == stage and rows[0]["policy"] == "base"
        assert [tree.place for tree in stored_trees(run.trees, "collect-1")] == [0, 1]


def test_a_wrong_stage_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "stages.toml").write_text('[[stages]]\nname = "a"\noption = {}\n')
    with pytest.raises(UserError, match=r"stages\.0\.option"):
        read_curriculum(tmp_path / "stages.toml")

"""The arms of the benchmark of planning in world models."""

from pathlib import Path

import pytest

from benchmarks.imagined_plans import ARMS, config_of, settings_digest
from treeagent.config import load_config
from treeagent.pipeline.folder import Run


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_plays_the_tasks_of_the_world_models_environment(tmp_path: Path, arm: str) -> None:
    worlds = tmp_path / "worlds"
    for path, steps in ((tmp_path / "run", 10), (worlds / "seed3-scratch", 8)):
        with Run.create(path, load_config(None, [f"environment.max_steps={steps}"]), resume=False):
            pass
    config, mode = config_of(tmp_path / "run", arm, 3, worlds, 50)
    assert config.environment.max_steps == 8
    assert config.search.limits.generated_tokens == 50 and config.search.limits.simulations is None
    assert (mode == "greedy") is (arm == "greedy")
    assert bool(config.evaluate.world) is (arm in ("words", "sentences"))
    assert config.evaluate.world.endswith("sentences") is (arm == "sentences")


@pytest.mark.parametrize("arm", ARMS)
def test_all_seeds_of_an_arm_have_the_same_settings(tmp_path: Path, arm: str) -> None:
    digests = set[str]()
    for seed in (0, 1):
        start = tmp_path / f"run{seed}"
        for path in (start, tmp_path / "worlds" / f"seed{seed}-scratch"):
            with Run.create(path, load_config(None, [f"evaluate.first_task={seed}"]), resume=False):
                pass
        config, _ = config_of(start, arm, seed, tmp_path / "worlds", 50)
        digests.add(settings_digest(config, arm, 9))
    assert len(digests) == 1

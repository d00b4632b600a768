"""The arms of the benchmark of world models are settings that a run accepts."""

from pathlib import Path

import pytest

from benchmarks.worlds import ARMS, config_of
from treeagent.config import load_config
from treeagent.pipeline.folder import Run


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_is_a_valid_world_model(tmp_path: Path, arm: str) -> None:
    with Run.create(tmp_path / "run", load_config(None, ["policy.model=some/model"]), resume=False) as run:
        world = config_of(run, arm, 7, 9, Path("encoder")).world
    assert world.demonstrations == 9
    assert (world.model == "some/model") is ("scratch" not in arm)
    assert (world.encoder.model == "encoder") is ("sentences" in arm)

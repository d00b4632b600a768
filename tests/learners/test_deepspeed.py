"""Updates in two processes by DeepSpeed: they end as those of one process do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import several

from treeagent.checkpoint import load_checkpoint

pytest.importorskip("deepspeed", reason="the deepspeed extra is not installed")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What a single process ended with, and two by DeepSpeed."""
    folder = tmp_path_factory.mktemp("processes")
    how = several.by("deepspeed.yaml", folder)
    return several.steps(folder, "1", several.ALONE) | several.steps(folder, "2", how)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Path]:
    """The folders of one process and of two."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    return several.updates(one, two, several.by("deepspeed.yaml", two))


@pytest.mark.slow
@pytest.mark.parametrize("learner", several.LEARNERS)
def test_two_processes_make_the_steps_of_one_on_as_many_rows(trained: dict[str, dict[str, Any]], learner: str) -> None:
    several.same_steps(trained, learner, "0 of 2", "1 of 2")


@pytest.mark.slow
def test_a_loss_that_one_process_alone_finds_broken_stops_both_on_the_last_good_weights(
    trained: dict[str, dict[str, Any]],
) -> None:
    ends = [trained[f"{rank} of 2"] for rank in (0, 1)]
    assert all("the loss is nan" in end["diverged"] and end["finite"] for end in ends)


@pytest.mark.slow
def test_a_killed_update_resumes_and_saves_the_stock_model_of_one_process(ended: Mapping[int, Path]) -> None:
    assert (ended[2] / "killed" / "checkpoint-8" / "global_step8").is_dir()  # DeepSpeed's own
    several.same_after_a_kill(ended)


@pytest.mark.slow
def test_the_first_process_validates_and_the_best_weights_are_kept(ended: Mapping[int, Path]) -> None:
    several.same_best(ended)


@pytest.mark.slow
def test_an_adapter_is_saved_alone(ended: Mapping[int, Path]) -> None:
    for count in (1, 2):
        assert not (ended[count] / "lora" / "model.safetensors").exists()
        adapted = load_checkpoint(ended[count] / "lora").model
        assert any(bool(parameter.any()) for name, parameter in adapted.named_parameters() if "lora_B" in name)

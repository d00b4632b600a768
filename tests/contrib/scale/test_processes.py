"""Learners in several processes started by ``accelerate launch`` take the same steps as in one process."""

from typing import Any

import pytest
import several
import torch
from tiny import make_model, weights


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The final states: of a single process, of two that each hold all weights, and of two that share the weights."""
    folder = tmp_path_factory.mktemp("processes")
    return {
        **several.steps(folder, "1", several.ALONE),
        **several.steps(folder, "2", several.WHOLE),
        **several.steps(folder, "2 that share", several.by("fsdp.yaml", folder)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("learner", several.LEARNERS)
def test_two_processes_make_the_steps_of_one_on_as_many_rows(trained: dict[str, dict[str, Any]], learner: str) -> None:
    several.same_steps(trained, learner, "0 of 2", "1 of 2", "0 of 2 that share", "1 of 2 that share")


@pytest.mark.slow
def test_the_first_process_alone_validates_and_all_keep_what_it_found_best(trained: dict[str, dict[str, Any]]) -> None:
    assert [end["asked"] for end in trained.values()] == [3, 3, 0, 3, 0]  # at steps 0, 2 and 4
    for end in trained.values():
        assert torch.equal(end["results"]["validated"][2], weights(make_model()))


@pytest.mark.slow
def test_a_loss_that_one_process_alone_finds_broken_stops_all(trained: dict[str, dict[str, Any]]) -> None:
    for kind in ("2", "2 that share"):
        ends = [trained[f"{rank} of {kind}"] for rank in (0, 1)]
        assert all("the loss is nan" in end["diverged"] and end["finite"] for end in ends)
        assert ends[0]["diverged"] == ends[1]["diverged"]


@pytest.mark.slow
@pytest.mark.parametrize(("learner", "steps"), [("ragged", 2), ("grpo-ragged", 4)])
def test_rows_that_do_not_fill_the_last_batches_are_trained_on_by_two_processes(
    trained: dict[str, dict[str, Any]], learner: str, steps: int
) -> None:
    for kind in ("2", "2 that share"):
        first, second = (trained[f"{rank} of {kind}"]["results"][learner] for rank in (0, 1))
        assert first[0] == second[0] == steps and torch.equal(first[2], second[2])

"""Stages of a curriculum: by hand from successes, and in a small run on two lengths of tasks."""

import pytest

from treeagent.contrib.curriculum.stages import Curriculum, Stage

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

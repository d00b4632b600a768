"""What the benchmarks share: every seed has its own test tasks, and no row is measured twice."""

from pathlib import Path

import pytest

from benchmarks.command import add_rounds
from benchmarks.learning import Learnt, arguments_of, recipe_path
from benchmarks.record import recording
from treeagent.config import load_config


@pytest.mark.parametrize("recipe", ["adapt", "flat_grpo"])
def test_every_seed_has_test_tasks_of_its_own(recipe: str) -> None:
    path = recipe_path(recipe)
    places = [load_config(path, arguments_of(path, seed, ["evaluate.tasks=30"])).evaluate.places for seed in range(3)]
    assert places == [range(0, 30), range(30, 60), range(60, 90)]


def test_repetitions_that_are_there_are_not_measured_again(tmp_path: Path) -> None:
    measured: list[int] = []

    def measure(number: int) -> dict[str, dict[str, float]]:
        measured.append(number)
        return {"ours": {"ratio": 1.0}, "theirs": {"ratio": 1.23456789}}

    for rounds in (2, 3):
        with recording("toy", "How fast?", folder=tmp_path) as record:
            add_rounds(record, rounds, "s", ["ours", "theirs"], measure)
    assert measured == [0, 1, 2]
    assert [row.figures["ratio"] for row in record.result.of("theirs").values()] == [1.23457] * 3


def test_an_arm_after_its_first_round_spent_what_that_round_spent() -> None:
    before, first, second = ({"solved": solved, "success": solved.count("1") / 2} for solved in ("00", "01", "11"))
    learnt = Learnt(before, [first, second], second, "s", 2, [(10.0, 100.0), (25.0, 240.0)], 9.0)
    assert (learnt.row("real", 1).solved, learnt.row("real", 1).environment_steps) == ("11", 25.0)
    early = learnt.after(1).row("real, one round", 1)
    assert (early.solved, early.environment_steps, early.generated_tokens) == ("01", 10.0, 100.0)
    assert early.figures == {"round 1": 0.5} and early.first_task == 2

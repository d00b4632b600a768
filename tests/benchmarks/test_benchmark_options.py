"""What the benchmarks share: every seed has its own test tasks, and no row is measured twice."""

from pathlib import Path

import pytest

from benchmarks import capacity
from benchmarks.command import add_rounds, options_digest, own_tasks, repeating, settings_of
from benchmarks.learning import Learnt, arguments_of, recipe_path
from benchmarks.record import digest, recording
from treeagent.config import load_config
from treeagent.pipeline.recipes import find_recipe


@pytest.mark.parametrize("recipe", ["adapt", "flat_grpo"])
def test_every_seed_has_test_tasks_of_its_own(recipe: str) -> None:
    path = recipe_path(recipe)
    places = [load_config(path, arguments_of(path, seed, ["evaluate.tasks=30"])).evaluate.places for seed in range(3)]
    assert places == [range(0, 30), range(30, 60), range(60, 90)]


@pytest.mark.parametrize("arm", capacity.ARMS)
def test_an_arm_of_capacity_is_the_recipe_but_for_its_own_settings(arm: str) -> None:
    recipe = find_recipe(capacity.RECIPE)
    first, second = (load_config(recipe, capacity.settings(arm, seed)) for seed in range(2))
    assert first.evaluate.places == range(1000, 1200) and second.evaluate.places == range(1200, 1400)
    plain = settings_of(load_config(recipe, ["update.methods=['rft']", "threads=1"]))
    changed = {name for name, value in settings_of(first).items() if plain[name] != value}
    assert changed == {setting.partition("=")[0] for setting in capacity.ARMS[arm]}


def test_settings_of_two_seeds_have_one_digest() -> None:
    one, other, third = (
        digest(settings_of(load_config(None, [f"seed={seed}", own_tasks(seed, 200), f"search.candidates={width}"])))
        for seed, width in ((0, 4), (1, 4), (0, 5))
    )
    assert one == other != third


def test_the_digest_of_options_leaves_out_where_and_how_often() -> None:
    options = repeating("", "toy", rounds=3)
    options.add_argument("--width", type=int, default=1)
    same = [["--rounds", "9"], ["--name", "other"], ["--results", "elsewhere"]]
    digests = {options_digest(options.parse_args(words)) for words in ([], *same)}
    assert len(digests) == 1 and options_digest(options.parse_args(["--width", "2"])) not in digests


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

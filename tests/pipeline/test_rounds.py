"""Search-and-adapt: the choice of the next tasks, by hand, and small runs of the whole loop."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command import CONFIG, treeagent

from treeagent.config import RunConfig
from treeagent.pipeline.folder import Run
from treeagent.pipeline.rounds import choose_tasks, names_to_learn_from
from treeagent.store import shard_names

SMALL = [
    "warm_start.episodes=300",
    "warm_start.training.max_steps=40",
    "collect.tasks=8",
    "update.validation_tasks=4",
    "evaluate.tasks=4",
]


def test_tasks_of_widest_spread_are_searched_again() -> None:
    searched = {
        0: 0.1,
        1: 0.5,
        2: 0.0,  # all paths had the same return: nothing to learn
        3: 0.4,
    }
    assert choose_tasks({}, 4, 0.5) == ([0, 1, 2, 3], [])
    assert choose_tasks(searched, 4, 0.5) == ([4, 5], [1, 3])
    assert choose_tasks(searched, 4, 0.25) == ([4, 5, 6], [1])
    assert choose_tasks(searched, 4, 0.0) == ([4, 5, 6, 7], [])
    assert choose_tasks(searched, 4, 1.0) == ([4], [0, 1, 3])  # at most the tasks with a spread


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("adapt") / "run"
    settings = [*SMALL, "workers=1", "adapt.rounds=2", 'adapt.methods=["dpo", "grpo"]']
    done = treeagent("train", "--config", CONFIG, "--out", out, *settings)
    assert done.returncode == 0, done.stderr
    return out


def test_every_round_searches_learns_and_is_logged(run: Path) -> None:
    assert shard_names(run / "trees")[:2] == ["collect-1", "collect-2"]
    rows = [row for row in Run.open(run).metrics() if row["stage"] == "adapt"]
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[1]["environment_steps"] > rows[0]["environment_steps"] > 0
    assert {"success", "reward_std", "entropy", "invalid", "repetition", "validation"} <= set(rows[0])
    for number in (1, 2):
        for method in ("dpo", "grpo"):
            assert (run / "checkpoints" / f"round-{number}-{method}" / "config.json").is_file()


def test_a_round_learns_from_its_own_trees_and_from_those_of_earlier_rounds_by_replay(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", RunConfig(), resume=False) as run:
        for name in ("collect-1", "collect-2", "collect-2-imagined", "collect-3", "collect-4"):
            run.finish(name, {})
        for replay, names in (
            (0, ["collect-3"]),
            (1, ["collect-3", "collect-2", "collect-2-imagined"]),
            (9, ["collect-3", "collect-2", "collect-2-imagined", "collect-1"]),
        ):
            config = replace(run.config, adapt=replace(run.config.adapt, replay=replay))
            assert names_to_learn_from(config, run, 3) == names


def test_the_first_and_the_best_policy_are_compared_in_every_mode(run: Path) -> None:
    rows = json.loads((run / "results.json").read_text())
    best = Run.open(run).facts("adapt")["best"]
    measured = [(row["policy"], row["mode"]) for row in rows]
    for mode in ("greedy", "best_of_n", "mcts"):
        assert ("warm", mode) in measured and (best, mode) in measured
    assert {policy for policy, mode in measured if mode == "greedy"} == {"warm", "round-1-grpo", "round-2-grpo"}


def test_a_finished_loop_resumes_to_the_same_table(run: Path) -> None:
    before = (run / "results.json").read_bytes()
    done = treeagent("train", "--out", run, "--resume")
    assert done.returncode == 0, done.stderr
    assert (run / "results.json").read_bytes() == before


def test_an_update_learns_from_all_rounds_of_another_run_under_settings_of_its_own(run: Path, tmp_path: Path) -> None:
    command: list[str | Path] = ["--out", tmp_path / "dpo", "--trees", run, "update.dpo.max_steps=2"]
    updated = treeagent("update", "dpo", run / "checkpoints" / "warm", *command)
    assert updated.returncode == 0, updated.stderr
    assert Run.open(tmp_path / "dpo").facts("dpo")["update"]["steps"] == 2
    assert Run.open(tmp_path / "dpo").config.collect == Run.open(run).config.collect
    other = treeagent("update", "dpo", run / "checkpoints" / "round-1-dpo", *command)
    assert other.returncode == 2
    assert "the dpo of" in other.stderr and "choose another --out" in other.stderr.replace("\n", " ")

"""``treeagent world`` on the trees of a small run."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from command import CONFIG, PROGRAM, treeagent
from toy_doors import BothDoors, Doors

from treeagent.config import RunConfig, load_config
from treeagent.envs import EnvDynamics
from treeagent.pipeline import world
from treeagent.pipeline.folder import Run, RunError
from treeagent.pipeline.progress import QuietProgress
from treeagent.pipeline.world import audit_world, fit, split
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.mcts import Search
from treeagent.search.node import Tree
from treeagent.search.record import from_record, to_record
from treeagent.store import read_as, write_shard
from treeagent.types import Message, Split, Task
from treeagent.world_model.transition import Experience

KEYS = {
    "observation_agreement",
    "observation_exact",
    "reward_accuracy",
    "reward_error",
    "transition_error",
    "termination_accuracy",
    "optimism",
    "cr",
    "lambda_cap",
}
WORLD = [
    "world.scratch.width=64",
    "world.scratch.layers=2",
    "world.training.max_steps=200",
    "world.training.batch_size=8",
    "world.training.learning_rate=6e-3",
    "world.hard_steps=10",
    "world.max_new_tokens=120",
    "world.examples=1",
    "world.reasoning=false",  # needs fewer training steps
]


@pytest.fixture(autouse=True, scope="module")
def larger_share() -> Iterator[None]:
    """Hold out more steps, because the runs are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "HELD_OUT", 0.3)
        yield


@pytest.fixture(scope="module")
def run(larger_share: None, finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the finished run, with a world model."""
    copied = shutil.copytree(finished_run, tmp_path_factory.mktemp("world") / "run")
    fitted = treeagent("world", "fit", copied, *WORLD)
    assert fitted.returncode == 0, fitted.stderr
    return copied


def test_a_world_model_is_fitted_and_audited(finished_run: Path, run: Path) -> None:
    before = treeagent("world", "eval", finished_run)
    assert before.returncode == 2 and "has no world model: fit one with treeagent world fit" in before.stderr
    facts = Run.open(run).facts("world")
    assert facts["learnt"] >= facts["rows"] > 0 and facts["held_out"] > 0
    assert (facts["update"]["steps"], facts["hard"]["steps"]) == (200, 10)
    audited = treeagent("world", "eval", run)
    assert audited.returncode == 0, audited.stderr
    found = json.loads((run / "fidelity.json").read_text())
    assert set(found) >= KEYS and "imagined experience" in audited.stdout
    assert 0 <= found["lambda_cap"] <= 1
    assert found["unreadable"] < 0.5  # so many steps at least teach the form of answers


def test_an_evaluation_plans_in_a_world_model(run: Path, tmp_path: Path) -> None:
    """Every real step is an executed one, as in the greedy evaluation."""
    checkpoint = run / "checkpoints" / "warm"
    settings = ["workers=1", "evaluate.tasks=3", 'evaluate.modes=["greedy","mcts"]', "search.limits.simulations=4"]
    command: list[str | Path] = ["eval", checkpoint, "--config", CONFIG, "--out", tmp_path / "planned", *settings]
    planned = treeagent(*command, f"evaluate.world={run}")
    assert planned.returncode == 0, planned.stderr
    rows = json.loads((tmp_path / "planned" / "results.json").read_text())
    assert [(row["mode"], row["environment_steps"]) for row in rows] == [
        (row["mode"], round(row["steps"] * 3)) for row in rows
    ]
    trees = list(read_as(from_record, tmp_path / "planned" / "trees"))
    assert len(trees) == 3 and sum(tree.budget.imagined_steps for tree in trees) > 0
    other = treeagent(
        *command,
        "environment.name=frozenlake",
        "environment.options={size=4}",
        f"evaluate.world={run}",
        "--out",
        tmp_path / "other",
    )
    assert other.returncode == 2
    assert "is of environment 'shop' with options" in other.stderr.replace("\n", " ")


def test_a_step_that_tasks_of_both_sides_share_is_held_out() -> None:
    """Small games with equal prompts start alike. An observation specific to one game is held out with that game
    only."""
    names = [f"game {number}" for number in range(20)]
    same = [Experience(name, (Message("user", "win"),), "look", "a room") for name in names]
    own = [Experience(name, (Message("user", "win"),), "wait", name) for name in names]
    learnt, held_out = split(iter([*same, *own]))
    assert [one.observation for one in held_out].count("a room") == 1
    assert {one.observation for one in learnt} == set(names) - {one.observation for one in held_out}


class OneGame(Doors):
    """All tasks have the same prompt, so they share every step."""

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return [replace(task, prompt="find the prize") for task in super().tasks(split, count, start)]


def searched(env: Doors, places: Iterable[int]) -> list[Tree]:
    tasks = [task for place in places for task in env.tasks("train", 1, place)]
    search = Search(BothDoors(), EnvDynamics(env, max_steps=2), SearchConfig(Limits(simulations=20), candidates=2))
    return asyncio.run(search.run(tasks, range(len(tasks))))


DOORS = ["environment.name=toy_doors:Doors", "environment.options={}", "environment.max_steps=2"]


def told(*settings: str) -> RunConfig:
    """Settings of a world model on a server, for which fitting only fills the memory."""
    server = ["world.generator=remote", "world.model=teller", "world.reasoning=false"]
    return load_config(CONFIG, [*DOORS, *server, *settings])


def test_what_an_earlier_round_has_learnt_is_never_audited(tmp_path: Path) -> None:
    config, env = told(), OneGame()
    places = {True: list[int](), False: list[int]()}
    for place, task in enumerate(env.tasks("train", 20)):
        alone = Experience(task.id, (Message("user", "win"),), "look", "a room")
        places[bool(split([alone])[1])].append(place)
    with Run.create(tmp_path / "run", config, resume=False) as run:
        write_shard(run.trees, "collect-0", 0, map(to_record, searched(env, places[False][:2])))
        write_shard(run.trees, "collect-1", 0, map(to_record, searched(Doors(), range(9))))  # this round is redone
        first = fit(config, run, QuietProgress(), run.checkpoints / "world-1")
        assert run.facts("world-1")["learnt"] == 7  # six steps and the opening of the game
        write_shard(run.trees, "collect-1", 0, map(to_record, searched(env, places[True][:2])))
        second = fit(config, run, QuietProgress(), run.checkpoints / "world-2", first)
        assert (run.facts("world-2")["learnt"], run.facts("world-2")["held_out"]) == (7, 0)
        for made in (first, second):
            with pytest.raises(RunError, match="is held out: collect more tasks"):
                audit_world(config, run, made)


@pytest.mark.slow
def test_a_fit_that_is_killed_among_its_hard_rows_ends_the_same(run: Path, tmp_path: Path) -> None:
    settings = ["world.training.max_steps=10", "world.hard_steps=60", "training.save_every=5"]
    weights = []
    for name in ("whole", "killed"):
        copy = shutil.copytree(run, tmp_path / name)
        shutil.rmtree(copy / "checkpoints" / "world", ignore_errors=True)  # another test may have fitted one
        (copy / "world.toml").unlink(missing_ok=True)
        begun = len(list(Run.open(copy).metrics()))
        command: list[str | Path] = [PROGRAM, "world", "fit", copy, *WORLD, *settings]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        if name == "killed":
            with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
                while not (copy / "checkpoints" / ".world-hard" / "checkpoint-10").exists():
                    assert process.poll() is None
                process.kill()
            assert not (copy / "checkpoints" / "world").exists()
        assert subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0
        weights.append((copy / "checkpoints" / "world" / "model.safetensors").read_bytes())
        rows = list(Run.open(copy).metrics())[begun:]
        steps = [row["step"] for row in rows if row["stage"] == "world-hard"]
        # It was resumed, not restarted. A kill just after a checkpoint may lose the row of its step.
        assert steps.count(10) <= 1 and steps[-1] == 60
    assert weights[0] == weights[1]

"""ALFWorld's games: parity with ALFWorld's own wrappers, snapshots that any instance restores, files made by its own
writer, and the demonstrator."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from treeagent.contrib.worlds.alfworld import AlfworldEnv, AlfworldOptions
from treeagent.contrib.worlds.alfworld.games import Kind, draw_spec, game_data
from treeagent.envs import check_env
from treeagent.envs.check import check_tasks
from treeagent.types import UserError

pytest.importorskip("alfworld", reason="the alfworld extra is not installed")

KINDS: tuple[Kind, ...] = Kind.__args__  # type: ignore[attr-defined]
SMALL = AlfworldOptions(alike=1)


@pytest.fixture(scope="module")
def env() -> Iterator[AlfworldEnv]:
    made = AlfworldEnv(SMALL)
    yield made
    made.close()


def begin(env: AlfworldEnv, index: int = 0) -> str:
    return env.reset(options={"task": env.tasks("train", 1, index)[0]})[0]


def words(text: str) -> list[str]:
    """The words of a text, sorted: ALFWorld lists things in the order of Python's hashes, which differs between
    processes."""
    return sorted(re.findall(r"\w+", text.split("\nCommands: ")[0]))


@pytest.mark.parametrize("index", range(2))
def test_check_env_finds_nothing(env: AlfworldEnv, index: int) -> None:
    report = check_env(env, env.tasks("train", 1, index)[0], other=AlfworldEnv(SMALL), branches=12, depth=4)
    assert not report.violations
    assert report.equal_branches == report.branches == 12
    assert check_tasks(env) == []


@pytest.mark.parametrize("index", range(2))
def test_it_plays_as_alfworld_itself_does(env: AlfworldEnv, index: int) -> None:
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld.envs.pddl.pddl import PddlEnv

    line = list(sys.argv)
    opening, rng, start = begin(env, index), random.Random(index), env.snapshot()
    assert sys.argv == line
    theirs = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
    theirs.load(game_data(draw_spec(SMALL, "train", index)))
    state = theirs.reset()
    assert words(f"Welcome to TextWorld, ALFRED! {opening}") == words(state.feedback)
    for number in range(25):
        assert env.legal_actions() == sorted(" ".join(each.split()) for each in state.admissible_commands)
        # Go elsewhere and back again: what was done there must leave no trace.
        here = env.snapshot()
        env.restore(start)
        env.step(rng.choice(env.legal_actions()))
        env.restore(here)
        command = rng.choice(state.admissible_commands) if number % 5 else "dance with fridge 1"
        observation, reward, terminated, *_ = env.step(command)
        state, _, done = theirs.step(command)
        assert words(observation) == words(state.feedback)
        assert (reward, terminated) == (float(state.won), done)
        if done:
            break
    sys.argv = line  # ALFWorld has overwritten it


@pytest.mark.parametrize("kind", KINDS)
def test_the_housekeeper_does_every_kind_of_chore(kind: Kind) -> None:
    env = AlfworldEnv(AlfworldOptions(kinds=(kind,), alike=1))
    for number, task in enumerate(env.tasks("test", 2)):
        observation, info = env.reset(options={"task": task})
        assert observation.startswith(task.prompt)
        assert "generated" in task.id and info == {"generated": True}
        assert env.verify() == 0.0
        player, rng = env.demonstrator(0.0), random.Random(number)
        assert player is not None
        rewards: list[float] = []
        while env.legal_actions() and len(rewards) < 50:
            thought, command = player.act(rng)
            assert thought
            rewards.append(env.step(command)[1])
        assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
        assert env.verify() == 1.0
        assert env.step("look")[1:3] == (0.0, True)


def test_files_of_alfworlds_own_writer_are_played(tmp_path: Path) -> None:
    spec = draw_spec(AlfworldOptions(alike=1, kinds=("look_at_obj_in_light",)), "train", 0)
    asked = {"object_target": spec.target, "parent_target": "", "toggle_target": spec.goal, "mrecep_target": ""}
    wanted = {"task_type": spec.kind, "pddl_params": {**asked, "object_sliced": False}}
    for name in ("train/a", "train/movable-b", "valid_unseen/c"):
        folder = tmp_path / "raw" / name
        folder.mkdir(parents=True)
        (folder / "traj_data.json").write_text(json.dumps(wanted))
        (folder / "initial_state.pddl").write_text(game_data(spec)["pddl_problem"])
    shipped, made = files("alfworld") / "data", tmp_path / "made"
    options = {"data_path": tmp_path / "raw", "save_path": made, "domain": shipped / "alfred.pddl", "end": 9}
    options |= {"grammar": shipped / "alfred.twl2", "expert_type": "planner"}
    writer = Path(sys.executable).parent / "alfworld-generate"
    arguments = [f"--{key}={value}" for key, value in options.items()]
    run = subprocess.run([sys.executable, str(writer), *arguments], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr

    env = AlfworldEnv(AlfworldOptions(games=str(made)))
    tasks = [env.tasks(split, 1)[0] for split in ("train", "test")]
    assert [task.id for task in tasks] == ["alfworld-train/a", "alfworld-valid_unseen/c"]
    observation, info = env.reset(options={"task": tasks[1]})
    assert observation.startswith(tasks[1].prompt) and spec.target.lower() in tasks[1].prompt
    assert info == {"generated": False}
    assert env.demonstrator(0.0) is None
    (file,) = made.glob("valid_unseen/c/game.tw-pddl")
    walkthrough = json.loads(file.read_text())["walkthrough"]
    assert [env.step(command)[1:3] for command in walkthrough][-1] == (1.0, True)
    assert check_env(env, tasks[0], branches=4, depth=3).passed
    with pytest.raises(UserError, match="has 1 train games, not 2"):
        env.tasks("train", 2)
    file.unlink()
    with pytest.raises(UserError, match="is no ALFWorld game"):
        AlfworldEnv(AlfworldOptions(games=str(made))).reset(options={"task": tasks[1]})
    with pytest.raises(UserError, match=r"has no game\.tw-pddl"):
        AlfworldEnv(AlfworldOptions(games=str(tmp_path / "raw")))

"""TextWorld's games: parity with TextWorld's own wrappers, exact snapshots in any instance, the cache and the
demonstrator."""

import json
import os
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from treeagent.contrib.worlds.textworld import TextWorldEnv, TextWorldOptions
from treeagent.contrib.worlds.textworld import env as env_module
from treeagent.contrib.worlds.textworld.games import cache_folder, compiled_folder, contained, spec_of
from treeagent.contrib.worlds.textworld.options import Kind
from treeagent.contrib.worlds.textworld.text import split_trace
from treeagent.envs import check_env
from treeagent.types import SPLITS, Split, Task, ToolCall, UserError

textworld = pytest.importorskip("textworld", reason="the textworld extra is not installed")

KINDS: tuple[Kind, ...] = ("cooking", "coin_collector", "treasure_hunter", "custom")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with games, compiled once for this module."""
    return str(tmp_path_factory.mktemp("textworld"))


@pytest.fixture
def env(cache: str) -> Iterator[TextWorldEnv]:
    made = make(cache)
    yield made
    made.close()


def make(cache: str, kind: Kind = "cooking", **settings: Any) -> TextWorldEnv:
    return TextWorldEnv(TextWorldOptions(kind=kind, cache=cache, **settings))


def begin(env: TextWorldEnv, index: int = 0) -> str:
    return env.reset(options={"task": env.tasks("train", 1, index)[0]})[0]


def solve(env: TextWorldEnv) -> list[str]:
    """Every observation on the way to winning."""
    seen = []
    while (solution := env.solution()) is not None:
        seen.append(env.step(solution[0])[0])
    return seen


def wander(env: TextWorldEnv, rng: random.Random, steps: int) -> list[object]:
    """What happens during up to ``steps`` commands, most of them admissible, some not understood."""
    seen: list[object] = []
    for _ in range(steps):
        commands = [*env.legal_actions(), "take", "dance"]
        result = env.step(rng.choice(commands))
        seen.append((result, env.state_key(), env.legal_actions(), env.verify()))
        if result[2]:
            break
    return seen


@pytest.mark.slow
def test_check_env_finds_nothing(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    env, other = make(cache), make(cache)
    report = check_env(env, env.tasks("train", 1)[0], other=other)
    with capsys.disabled():
        print(f"textworld: {report.equal_branches} of {report.branches} branches equal their replays")
    assert report.passed, report.violations
    assert report.equal_branches == report.branches >= 20
    assert not report.skipped


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind == "cooking" else []) for kind in KINDS]
)
def test_it_plays_as_textworld_itself_does(cache: str, kind: Kind) -> None:
    env, rng = make(cache, kind), random.Random(kind)
    task = env.tasks("train", 1)[0]
    compared = 0
    for walk in range(4):
        env.reset(options={"task": task})
        wanted = textworld.EnvInfos(admissible_commands=True, policy_commands=True, intermediate_reward=True)
        with contained():
            theirs = textworld.start(str(compiled_folder(spec_of(task), cache_folder(cache)) / "game.z8"), wanted)
        state = theirs.reset()
        for _ in range(25):
            assert env.legal_actions() == state.admissible_commands
            assert list(env.solution() or ()) == state.policy_commands
            straight = walk == 0 or rng.random() < 0.4
            command = state.policy_commands[0] if straight else rng.choice(state.admissible_commands)
            observation, _, terminated, truncated, info = env.step(command)
            state, _, done = theirs.step(command)
            assert observation == split_trace(state.feedback)[0]
            assert (terminated, truncated, env.verify()) == (done, False, float(state.won))
            assert info["components"] == {"progress": state.intermediate_reward}
            compared += 1
            if done:
                break
        assert walk or env.verify() == 1.0
        theirs.close()
    assert compared > 12


@pytest.mark.slow
def test_branches_equal_replays_in_any_order_across_games(
    cache: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # One game in memory at a time, so that every change of game loads another.
    monkeypatch.setattr(env_module, "LOADED", 1)
    env, rng = make(cache), random.Random(0)
    places = []
    for number in range(24):
        begin(env, index=number % 2)
        trunk = rng.randrange(2**30)
        before = wander(env, random.Random(trunk), number % 7)
        if env.legal_actions():
            places.append((number % 2, trunk, number % 7, before, env.snapshot()))
    rng.shuffle(places)
    branches = 0
    for index, trunk, steps, before, place in places * 2:
        branch = rng.randrange(2**30)
        env.restore(place)
        first = wander(env, random.Random(branch), 6)
        env.restore(pickle.loads(pickle.dumps(place)))
        assert wander(env, random.Random(branch), 6) == first
        begin(env, index)
        assert wander(env, random.Random(trunk), steps) == before
        assert wander(env, random.Random(branch), 6) == first
        branches += 1
    with capsys.disabled():
        print(f"textworld: {branches} restored branches equal their replays, two games in turn")
    assert branches >= 40


@pytest.mark.slow
def test_a_snapshot_is_good_in_another_process(cache: str, env: TextWorldEnv, tmp_path: Path) -> None:
    begin(env)
    env.step("examine cookbook")
    wander(env, random.Random(3), 2)
    task = env.tasks("train", 1)[0]
    place = tmp_path / "place"
    place.write_bytes(pickle.dumps((cache, task, env.snapshot())))
    assert len(place.read_bytes()) < 4000
    code = (
        "import pickle, sys, random; from treeagent.contrib.worlds.textworld import TextWorldEnv, TextWorldOptions\n"
        "cache, task, place = pickle.load(open(sys.argv[1], 'rb'))\n"
        "env = TextWorldEnv(TextWorldOptions(cache=cache)); env.restore(place)\n"
        "player, rng = env.demonstrator(0.5), random.Random(1)\n"
        "for _ in range(12): print(env.state_key(), env.legal_actions(), env.step(player.act(rng)[1]))\n"
    )
    seen = set()
    for hash_seed in ("1", "2"):
        # TextWorld keeps facts in sets; their order must not affect the output.
        run = subprocess.run(
            [sys.executable, "-c", code, str(place)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr
        seen.add(run.stdout)
    player, rng = env.demonstrator(0.5), random.Random(1)
    here = "".join(f"{env.state_key()} {env.legal_actions()} {env.step(player.act(rng)[1])}\n" for _ in range(12))
    assert seen == {here}


@pytest.mark.parametrize("kind", ["cooking", "coin_collector", "treasure_hunter"])
def test_equal_keys_are_equal_futures(cache: str, kind: Kind) -> None:
    env, rng = make(cache, kind), random.Random(0)
    begin(env)
    places, by_key = [env.snapshot()], {env.state_key(): [env.snapshot()]}
    for _ in range(60):
        env.restore(rng.choice(places))
        if env.legal_actions():
            env.step(rng.choice(env.legal_actions()))
            places.append(env.snapshot())
            by_key.setdefault(env.state_key(), []).append(env.snapshot())
    compared = 0
    for alike in by_key.values():
        different = [place for place in alike[1:] if place != alike[0]]
        for place in different[:2]:
            env.restore(place)
            for command in env.legal_actions():
                futures = []
                for start in (alike[0], place):
                    env.restore(start)
                    futures.append((env.step(command)[:4], env.state_key(), env.legal_actions()))
                assert futures[0] == futures[1]
                compared += 1
    assert compared > 20


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("dance", "That's not a verb I recognise."),
        ("undo", "That's not a verb I recognise."),
        ("restart", "That's not a verb I recognise."),
        ("tw-trace-actions", "That's not a verb I recognise."),
        ("look then undo", "One thing at a time."),
        ("open fridge. undo", "One thing at a time."),
        ("look\nundo", "You can't see any such thing."),
        ("", "I beg your pardon?"),
        ("take " + "x" * 300, "That is too long."),
        ("take unicorn", "You can't see any such thing."),
        ("go up", "You can't go that way."),
        ("look up potato in cookbook", "Say in full what to do with what."),
        (ToolCall("dance", {"command": "look"}), "no tool dance, use one of: act"),
        (ToolCall("act", {"words": "look"}), "act needs command"),
        (ToolCall("act", {"command": 3}), "command of act must be of type string"),
        (ToolCall("act", {"command": "dance"}), "That's not a verb I recognise."),
    ],
)
def test_a_bad_call_is_an_observation_and_changes_nothing(env: TextWorldEnv, call: str | ToolCall, reason: str) -> None:
    begin(env)
    before = env.snapshot()
    observation, reward, terminated, truncated, info = env.step(call)
    assert (observation, reward, terminated, truncated) == (reason, 0.0, False, False)
    assert info == {"tool_error": reason}
    assert env.snapshot() == before


def test_text_and_tool_do_the_same_in_other_words_too(env: TextWorldEnv) -> None:
    begin(env)
    place = env.snapshot()
    results = []
    for call in ("open fridge", "  OPEN the  Fridge ", ToolCall("act", {"command": "open fridge"})):
        env.restore(place)
        results.append((env.step(call), env.state_key()))
    assert results[0] == results[1] == results[2]
    (tool,) = env.tools()
    assert json.loads(json.dumps(tool.parameters))["required"] == ["command"]


def test_winning_and_losing(env: TextWorldEnv) -> None:
    begin(env)
    assert env.verify() == 0.0
    observations = solve(env)
    assert observations[-1].endswith("*** The End ***")
    assert (env.verify(), env.legal_actions(), env.solution()) == (1.0, [], None)
    observation, reward, terminated, truncated, info = env.step("look")
    assert (observation, reward, terminated, truncated) == ("The game is over.", 0.0, True, False)
    assert info["tool_error"] == "The game is over."
    assert env.verify() == 1.0

    begin(env)
    while not any(command.startswith("eat ") for command in env.legal_actions()):
        solution = env.solution()
        assert solution is not None
        env.step(solution[0])
    # It is the only ingredient: an agent that eats it now can never cook it.
    eat = next(command for command in env.legal_actions() if command.startswith("eat "))
    observation, reward, terminated, _, info = env.step(eat)
    assert observation.endswith("*** You lost! ***")
    assert (reward, terminated, info["components"], env.verify()) == (0.0, True, {"progress": -1}, 0.0)


def test_the_only_reward_is_at_the_end_and_progress_is_hidden(env: TextWorldEnv) -> None:
    text = begin(env)
    rewards = []
    while (solution := env.solution()) is not None:
        observation, reward, *_, info = env.step(solution[0])
        assert info["components"] == {"progress": 1}
        rewards.append(reward)
        text += observation
    assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
    assert "process" not in text


def test_plain_prose_follows_the_world(env: TextWorldEnv) -> None:
    text = begin(env)
    assert "closed fridge" in text
    revealed = env.step("open fridge")[0].partition("revealing ")[2].rstrip(".")
    assert revealed
    assert f"open fridge with {revealed}" in env.step("look")[0]


def test_tasks_cost_nothing_and_splits_share_no_game(tmp_path: Path) -> None:
    env = make(str(tmp_path / "none"))
    ids = dict[Split, set[str]]()
    for split in SPLITS:
        tasks = env.tasks(split, 2000)
        assert env.tasks(split, 5, start=100) == tasks[100:105]
        assert json.loads(json.dumps(dict(tasks[7].data))) == tasks[7].data
        assert tasks[7].data["kind"] == "cooking" and tasks[7].data["cut"] is True
        ids[split] = {task.id for task in tasks}
        assert {task.split for task in tasks} == {split}
    assert len(ids["train"] | ids["validation"] | ids["test"]) == 6000
    assert not (tmp_path / "none").exists()


def test_a_second_use_compiles_nothing(cache: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = begin(make(cache))
    monkeypatch.setenv("INFORM_HOME", str(tmp_path / "no-compiler-here"))
    assert begin(make(cache)) == text
    other = make(str(tmp_path / "cache"))
    with pytest.raises(UserError, match="see that its compiler runs here"):
        begin(other)
    assert list(tmp_path.glob("cache/*/*")) == []


def _first_text(folder: str) -> str:
    return begin(make(folder))


@pytest.mark.slow
def test_processes_share_one_cache_and_one_that_is_killed_does_no_harm(cache: str, tmp_path: Path) -> None:
    context = get_context("spawn")
    killed = context.Process(target=_first_text, args=(str(tmp_path),))
    killed.start()
    while not list(tmp_path.glob("*/.making-*/game/*")):
        assert killed.is_alive()
        time.sleep(0.01)
    killed.kill()
    killed.join()
    name = "cooking-plain-rooms1-ingredients1-cut-cook-0"
    assert name not in [path.name for path in tmp_path.glob("*/*")]
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        texts = list(pool.map(_first_text, [str(tmp_path)] * 2))
    assert texts == [begin(make(cache))] * 2
    (folder,) = tmp_path.glob(f"*/{name}")
    assert sorted(path.name for path in folder.iterdir()) == ["game.json", "game.z8"]


@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_the_demonstrator_wins(cache: str, kind: Kind) -> None:
    env = make(cache, kind)
    begin(env)
    player, steps = env.demonstrator(0.0), 0
    while env.legal_actions():
        assert "tool_error" not in env.step(player.act(random.Random(0))[1])[4]
        steps += 1
    assert env.verify() == 1.0
    assert steps <= 20


def test_the_demonstrator_recovers_from_its_errors_and_thinks_the_same_when_it_errs(env: TextWorldEnv) -> None:
    won = erred_and_won = 0
    for seed in range(20):
        rng = random.Random(seed)
        sound, noisy = env.demonstrator(0.0), env.demonstrator(0.25)
        begin(env)
        erred = False
        for _ in range(25):
            if not env.legal_actions():
                break
            thought, command = noisy.act(rng)
            meant = sound.act(random.Random(0))
            if env.solution():
                assert thought == meant[0] != ""
            erred |= command != meant[1]
            env.step(command)
        won += env.verify() == 1.0
        erred_and_won += erred and env.verify() == 1.0
    assert 20 > won >= erred_and_won >= 2
    with pytest.raises(ValueError, match=r"noise is 1\.5"):
        env.demonstrator(1.5)


def test_the_demonstrator_reads_first_and_thinks_of_the_recipe(env: TextWorldEnv) -> None:
    begin(env)
    player, rng = env.demonstrator(0.0), random.Random(0)
    assert player.act(rng) == ("examine cookbook", "examine cookbook")
    recipe = env.step("examine cookbook")[0]
    verb = {"fry": "stove", "roast": "oven", "grill": "BBQ"}
    thoughts = []
    while env.legal_actions():
        thought, command = player.act(rng)
        thoughts.append(thought)
        env.step(command)
    assert thoughts[-2:] == ["prepare meal", "eat meal"]
    cooked = next(thought for thought in thoughts if thought.startswith("cook "))
    assert any(f"{how} the {cooked.split(' with ')[0][5:]}" in recipe and cooked.endswith(verb[how]) for how in verb)


def test_strange_tasks_and_snapshots_are_refused(env: TextWorldEnv) -> None:
    with pytest.raises(UserError, match="task 'x' holds no TextWorld game"):
        env.reset(options={"task": Task("x", "play")})
    with pytest.raises(UserError, match="is a str"):
        env.reset(options={"task": "play"})
    with pytest.raises(UserError, match="a int is no snapshot"):
        env.restore(3)
    with pytest.raises(ValueError, match="no episode has begun"):
        env.step("look")


def test_without_textworld_the_extra_is_named() -> None:
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('textworld', 'jericho'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from treeagent.envs import make_env\n"
        "try:\n"
        "    make_env('treeagent.contrib.worlds.textworld:TextWorldEnv')\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.startswith("UserError textworld is missing"), run.stderr
    assert "pip install 'treeagent[textworld]'" in run.stdout

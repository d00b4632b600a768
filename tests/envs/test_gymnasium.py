"""Gymnasium's environments behind treeagent's contract: real ones, wrapped ones, and ones whose copies are wrong."""

import pickle
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from treeagent.contrib.worlds.frozenlake import FrozenLakeEnv, FrozenLakeOptions, shortest_way
from treeagent.envs import Forkable, WorkerEnv, check_env, make_env
from treeagent.envs.check import check_tasks
from treeagent.envs.gymnasium import GymnasiumEnv, from_gymnasium
from treeagent.types import Task, ToolCall, UserError

gymnasium = pytest.importorskip("gymnasium", reason="the gymnasium extra is not installed")

LAKE = ["SFH", "FFH", "HFG"]


def lake(slippery: bool = False, rows: Sequence[str] = LAKE) -> FrozenLakeEnv:
    env = FrozenLakeEnv(FrozenLakeOptions(size=3, slippery=slippery))
    env.reset(options={"task": Task("lake", "walk", seed=5, data={"map": list(rows)})})
    return env


def walked(env: FrozenLakeEnv, noise: float, seed: int) -> float:
    """The verdict on an episode of the demonstrator."""
    player, rng = env.demonstrator(noise), random.Random(seed)
    for _ in range(40):
        if env.step(player.act(rng)[1])[2]:
            break
    return env.verify()


class Corridor(gymnasium.Env[int, int]):  # type: ignore[name-defined, misc]
    """Takes three steps to the right."""

    place = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.place += action
        return self.place, float(self.place == 3), self.place == 3, False, {}


class Rebuilt(gymnasium.utils.EzPickle, Corridor):  # type: ignore[name-defined, misc]
    """Is pickled as its constructor arguments, so a copy is back at the start."""


class Unstarted(Rebuilt):
    """Refuses a step before the first reset, as Gymnasium's LunarLander does."""

    started = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        self.started = True
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        assert self.started, "You forgot to call reset()"
        return super().step(action)


class Closing(Corridor):
    """A game that ends with its first step and does not start again after it was closed."""

    closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        if self.closed:
            raise RuntimeError("reset after close")
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return 1, 1.0, True, False, {}

    def close(self) -> None:
        self.closed = True


class Unpicklable(Corridor):
    def __init__(self) -> None:
        self.open = (number for number in range(3))


def paid(game: Any, reward: float) -> bool:
    return reward > 0


def corridor(game: Any) -> GymnasiumEnv:
    return from_gymnasium(
        game,
        prompt="Go right.",
        render=lambda _, place: f"at {place}",
        actions={"right": 1, "left": -1},
        success=paid,
    )


def test_trying_whether_copies_play_on_does_not_close_the_game() -> None:
    game = Closing()
    env = corridor(game)
    assert env.snapshot_kind == "exact"
    assert env.reset(seed=0) == ("at 0", {})
    env.close()
    assert game.closed


def test_actions_are_found_in_their_own_case_and_in_any_other() -> None:
    env = from_gymnasium(
        Corridor(), prompt="Go.", render=lambda _, place: f"at {place}", actions={"Right": 1, "l": -1}, success=paid
    )
    env.reset(seed=0)
    assert env.legal_actions() == ["Right", "l"]
    calls: list[str | ToolCall] = ["Right", "L", "right", ToolCall("act", {"action": "Right"})]
    assert [env.step(call)[0] for call in calls] == ["at 1", "at 0", "at 1", "at 2"]


@pytest.mark.parametrize("options", [{}, {"slippery": True}, {"size": 8}])
def test_frozen_lake_keeps_the_contract(options: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    env, other = make_env("frozenlake", options), make_env("frozenlake", options)
    for task in env.tasks("train", 2):
        report = check_env(env, task, other=other)
        with capsys.disabled():
            print(f"frozenlake {options}: {report.equal_branches} of {report.branches} branches equal their replays")
        assert report.passed, report.violations
        assert report.equal_branches == report.branches > 5
        assert not report.skipped
    assert check_tasks(env) == []
    assert env.snapshot_kind == "exact"


def test_no_map_is_in_two_splits_however_they_are_asked_for() -> None:
    env, other = FrozenLakeEnv(), FrozenLakeEnv()
    test = other.tasks("test", 60)
    train = env.tasks("train", 60)
    assert list(other.tasks("train", 60)) == list(train)
    assert list(env.tasks("test", 60)) == list(test)
    maps = [repr(task.data["map"]) for task in (*train, *test, *env.tasks("validation", 60))]
    assert len(set(maps)) == 180
    with pytest.raises(UserError, match="raise option size"):
        FrozenLakeEnv(FrozenLakeOptions(size=2)).tasks("train", 100)


def test_the_lake_reads_as_it_is() -> None:
    env = lake()
    assert env.reset(options={"task": Task("lake", "walk", data={"map": LAKE})})[0] == "P . O\n. . O\nO . G"
    assert env.step("down")[0] == ". . O\nP . O\nO . G"
    assert env.step(ToolCall("act", {"action": "right"}))[:3] == (". . O\n. P O\nO . G", 0.0, False)
    place = env.snapshot()
    assert env.step("right")[:3] == ("you fell into a hole", 0.0, True)
    assert (env.verify(), env.legal_actions()) == (0.0, [])
    assert env.step("left") == ("the episode is over", 0.0, True, False, {"tool_error": "the episode is over"})
    env.restore(place)
    env.step("down")
    assert env.step("  RIGHT ")[:3] == ("you reached the goal", 1.0, True)
    assert env.verify() == 1.0


@pytest.mark.parametrize(
    "call", ["jump", "", ToolCall("act", {}), ToolCall("act", {"action": 2}), ToolCall("go", {"action": "left"})]
)
def test_a_bad_call_is_an_observation(call: str | ToolCall) -> None:
    env = lake()
    before = env.state_key()
    observation, reward, terminated, truncated, info = env.step(call)
    assert observation == info["tool_error"] == "no such action, use one of: left, down, right, up"
    assert (reward, terminated, truncated, env.state_key()) == (0.0, False, False, before)


def test_the_shortest_way_goes_around_the_holes() -> None:
    for slippery in (False, True):
        assert shortest_way(lake(slippery).game) == ["down", "right", "down", "right"]
    assert shortest_way(lake(rows=["SH", "HG"]).game) == []
    assert shortest_way(lake(rows=["GF", "FS"]).game) == ["left", "up"]


def test_the_demonstrator_wins_unless_noise_or_ice_lead_it_astray() -> None:
    env, won = FrozenLakeEnv(), dict[float, float]()
    for noise in (0.0, 0.5):
        won[noise] = 0.0
        for number, task in enumerate(env.tasks("train", 30)):
            env.reset(options={"task": task})
            won[noise] += walked(env, noise, number)
    assert won[0.0] == 30
    assert 2 < won[0.5] < 25
    assert lake().demonstrator(0.0).act(random.Random(0))[0].endswith("right")
    with pytest.raises(UserError, match=r"noise is 1\.5"):
        env.demonstrator(1.5)


def test_slippery_ice_is_reseeded_where_search_goes_back() -> None:
    fork = Forkable(lake(slippery=True))
    fork.reset(Task("lake", "walk", seed=5, data={"map": LAKE}))
    mark = fork.mark()
    seen = set[str]()
    for _ in range(12):
        fork.goto(mark)
        seen.add(fork.step("down")[0])
    assert len(seen) == 3, "down, and astray to either side"


def test_a_snapshot_holds_in_another_process() -> None:
    env, there = lake(), WorkerEnv("frozenlake", {"size": 3})
    env.step("down")
    task = Task("lake", "walk", seed=5, data={"map": LAKE})
    there.reset(options={"task": task})
    there.step("down")
    place = there.snapshot()
    there.step("right")
    there.restore(place)
    assert there.state_key() == env.state_key() == "lake 3"
    there.close()


@pytest.mark.parametrize(
    ("name", "actions"),
    [
        ("Taxi-v4", {"south": 0, "north": 1, "east": 2, "west": 3, "pickup": 4, "dropoff": 5}),
        ("CliffWalking-v1", {"up": 0, "right": 1, "down": 2, "left": 3}),
        ("Blackjack-v1", {"stick": 0, "hit": 1}),
        ("CartPole-v1", {"left": 0, "right": 1}),
    ],
)
def test_any_registered_environment_of_named_actions_is_played(name: str, actions: dict[str, int]) -> None:
    def wrapped() -> GymnasiumEnv:
        return from_gymnasium(
            name,
            prompt="Play.",
            render=lambda _, observation: repr(observation),
            actions=actions,
            success=paid,
            stochastic=name == "Blackjack-v1",
        )

    env = wrapped()
    assert env.snapshot_kind == "exact"
    report = check_env(env, env.tasks("train", 1)[0], other=wrapped(), branches=12)
    assert report.passed, report.violations
    assert report.equal_branches == report.branches > 2
    assert env.tasks("train", 1)[0].id == f"{name}-train-0"


def test_an_environment_of_ones_own_is_wrapped_as_it_is() -> None:
    env = corridor(Corridor())
    assert env.snapshot_kind == "exact"
    env.reset()
    for place in ("at 1", "at 2", "at 3"):
        assert env.step("right")[0] == place
    assert env.verify() == 1.0
    assert pickle.loads(pickle.dumps(env.snapshot())) == env.snapshot()


@pytest.mark.parametrize("game", [Rebuilt, Unstarted, Unpicklable])
def test_a_game_whose_copies_lie_is_replayed(game: type[Corridor]) -> None:
    env = corridor(game())
    assert env.snapshot_kind == "replay"
    report = check_env(env, env.tasks("train", 1)[0], other=corridor(game()))
    assert report.passed, report.violations


def test_baby_ai_in_words_with_its_own_bot(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("minigrid", reason="the minigrid extra is not installed")
    for level in ("BabyAI-GoToLocal-v0", "BabyAI-PickupLoc-v0", "BabyAI-OpenRedDoor-v0"):
        env, other = (make_env("minigrid", {"level": level}) for _ in range(2))
        report = check_env(env, env.tasks("train", 1)[0], other=other)
        assert report.passed, report.violations
        assert (report.branches, report.equal_branches, report.skipped) == (24, 24, ())
        won = 0.0
        for number, task in enumerate(env.tasks("train", 8)):
            observation, _ = env.reset(options={"task": task})
            assert observation.startswith("mission: ")
            player, rng = env.demonstrator(0.2), random.Random(number)
            assert player is not None
            for _ in range(64):
                if any(env.step(player.act(rng)[1])[2:4]):
                    break
            won += env.verify() or 0.0
        with capsys.disabled():
            print(f"{level}: the bot wins {won:.0f} of 8 at noise 0.2")
        assert won >= 6
    assert make_env("minigrid", {"level": "MiniGrid-DoorKey-5x5-v0"}).demonstrator(0.0) is None
    with pytest.raises(UserError, match="level is 'Nowhere-v0'"):
        make_env("minigrid", {"level": "Nowhere-v0"})


@pytest.mark.parametrize("level", ["BabyAI-PutNextLocal-v0", "BabyAI-SynthSeq-v0", "MiniGrid-ObstructedMaze-1Dlhb-v0"])
def test_equal_keys_of_minigrid_are_equal_futures(level: str) -> None:
    pytest.importorskip("minigrid", reason="the minigrid extra is not installed")
    env, rng = make_env("minigrid", {"level": level}), random.Random(0)
    actions = ["left", "right", "forward", "pickup", "drop", "toggle"]
    env.reset(options={"task": env.tasks("train", 1)[0]})
    places, by_key = [env.snapshot()], {env.state_key(): [env.snapshot()]}
    for _ in range(80):
        env.restore(rng.choice(places[-12:]))
        if not any(env.step(rng.choice(actions))[2:4]):
            places.append(env.snapshot())
            by_key.setdefault(env.state_key(), []).append(env.snapshot())
    compared = 0
    for first, *alike in by_key.values():
        for place in alike[:1]:
            for action in actions:
                futures = []
                for start in (first, place):
                    env.restore(start)
                    observation, _, *ended, _ = env.step(action)
                    futures.append((observation, ended, env.state_key()))
                assert futures[0] == futures[1]
                compared += 1
    assert compared > 40
    env.reset(options={"task": env.tasks("train", 1)[0]})
    key = env.state_key()
    env.step("left")
    assert env.state_key() != key
    env.step("right")
    assert env.state_key() == key


def test_what_baby_ai_shows_is_named_by_where_it_is() -> None:
    pytest.importorskip("minigrid", reason="the minigrid extra is not installed")
    env = make_env("minigrid", {"level": "MiniGrid-DoorKey-5x5-v0"})
    env.reset(options={"task": Task("door", "", seed=1)})
    seen = set[str]()
    rng = random.Random(0)
    for _ in range(60):
        seen.update(env.step(rng.choice(["left", "right", "forward", "pickup"]))[0].split("\n")[1:])
    text = "\n".join(seen)
    assert "locked yellow door" in text
    assert "yellow key" in text
    assert "wall 1 ahead" in text
    assert "you carry: yellow key" in text


def test_an_unknown_id_and_no_action_are_refused() -> None:
    with pytest.raises(UserError, match="'Nowhere-v0'"):
        from_gymnasium("Nowhere-v0", prompt="", render=lambda *_: "", actions={"up": 1}, success=paid)
    moves = {"left": 0, "down": 1, "right": 2, "up": 3}
    with pytest.raises(UserError, match="stochastic=True"):  # the ice is slippery by default
        from_gymnasium("FrozenLake-v1", prompt="", render=lambda *_: "", actions=moves, success=paid)
    with pytest.raises(UserError, match="actions is empty"):
        from_gymnasium("CartPole-v1", prompt="", render=lambda *_: "", actions={}, success=paid)
    env = lake()
    with pytest.raises(UserError, match="holds no map"):
        env.reset(options={"task": Task("lake", "walk")})
    with pytest.raises(ValueError, match="no episode has begun"):
        FrozenLakeEnv().step("up")


@pytest.mark.parametrize(("name", "extra"), [("frozenlake", "gymnasium"), ("minigrid", "minigrid")])
def test_without_the_package_the_extra_is_named(name: str, extra: str) -> None:
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == {extra!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from treeagent.cli import main\n"
        f"sys.argv = ['treeagent', 'envs', 'check', {name!r}]\n"
        "main()\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr.startswith(f"{extra} is missing")
    assert f"pip install 'treeagent[{extra}]'" in run.stderr
    assert run.stderr.count("\n") == 1


def test_the_documentations_example_works() -> None:
    text = (Path(__file__).parents[2] / "docs" / "environment.md").read_text()
    code = text.partition("```python\n")[2].partition("```")[0]
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    env = namespace["cliff"]()
    assert env.reset()[0] == "row 3 column 0"
    for action in ("up", *["right"] * 11, "down"):
        observation, _, terminated, *_ = env.step(action)
    assert (observation, terminated, env.verify()) == ("row 3 column 11", True, 1.0)

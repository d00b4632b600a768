"""TextWorld's games: parity with TextWorld's own wrappers, exact snapshots in any instance, the cache and the
demonstrator."""

import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest

from treeagent.contrib.worlds.textworld import TextWorldEnv, TextWorldOptions
from treeagent.contrib.worlds.textworld import env as env_module
from treeagent.contrib.worlds.textworld.games import Kind, cache_folder, compiled_folder, contained, spec_of
from treeagent.contrib.worlds.textworld.text import split_trace
from treeagent.envs import check_env
from treeagent.types import ToolCall

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

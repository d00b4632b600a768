"""TextWorld's games: parity with TextWorld's own wrappers, exact snapshots in any instance, the cache and the
demonstrator."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from treeagent.contrib.worlds.textworld import TextWorldEnv, TextWorldOptions
from treeagent.contrib.worlds.textworld.games import Kind, cache_folder, compiled_folder, contained, spec_of
from treeagent.contrib.worlds.textworld.text import split_trace
from treeagent.envs import check_env
from treeagent.types import ToolCall

textworld = pytest.importorskip("textworld", reason="the textworld extra is not installed")

KINDS: tuple[Kind, ...] = ("cooking", "coin_collector")


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


@pytest.mark.slow
def test_check_env_finds_nothing(cache: str) -> None:
    env, other = make(cache), make(cache)
    report = check_env(env, env.tasks("train", 1)[0], other=other)
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


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("dance", "That's not a verb I recognise."),
        ("look then undo", "One thing at a time."),
        ("", "I beg your pardon?"),
        ("look up potato in cookbook", "Say in full what to do with what."),
        (ToolCall("dance", {"command": "look"}), "no tool dance, use one of: act"),
    ],
)
def test_a_bad_call_is_an_observation_and_changes_nothing(env: TextWorldEnv, call: str | ToolCall, reason: str) -> None:
    begin(env)
    before = env.snapshot()
    observation, reward, terminated, truncated, info = env.step(call)
    assert (observation, reward, terminated, truncated) == (reason, 0.0, False, False)
    assert info == {"tool_error": reason}
    assert env.snapshot() == before

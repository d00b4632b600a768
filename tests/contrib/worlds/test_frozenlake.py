"""Frozen Lake: maps, texts, demonstrator, reseeding."""

from collections.abc import Sequence

import pytest

from treeagent.contrib.worlds.frozenlake import FrozenLakeEnv, FrozenLakeOptions
from treeagent.envs import Forkable, check_env, make_env
from treeagent.envs.check import check_tasks
from treeagent.types import Task, ToolCall

gymnasium = pytest.importorskip("gymnasium", reason="the gymnasium extra is not installed")

LAKE = ["SFH", "FFH", "HFG"]


def lake(slippery: bool = False, rows: Sequence[str] = LAKE) -> FrozenLakeEnv:
    env = FrozenLakeEnv(FrozenLakeOptions(size=3, slippery=slippery))
    env.reset(options={"task": Task("lake", "walk", seed=5, data={"map": list(rows)})})
    return env


@pytest.mark.parametrize("options", [{}, {"slippery": True}, {"size": 8}])
def test_frozen_lake_keeps_the_contract(options: dict[str, object]) -> None:
    env, other = make_env("frozenlake", options), make_env("frozenlake", options)
    for task in env.tasks("train", 2):
        report = check_env(env, task, other=other)
        assert report.passed, report.violations
        assert report.equal_branches == report.branches > 5
        assert not report.skipped
    assert check_tasks(env) == []
    assert env.snapshot_kind == "exact"


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


def test_slippery_ice_is_reseeded_where_search_goes_back() -> None:
    fork = Forkable(lake(slippery=True))
    fork.reset(Task("lake", "walk", seed=5, data={"map": LAKE}))
    mark = fork.mark()
    seen = set[str]()
    for _ in range(12):
        fork.goto(mark)
        seen.add(fork.step("down")[0])
    assert len(seen) == 3, "down, and astray to either side"

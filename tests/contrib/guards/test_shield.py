"""Calls that are blocked before the environment."""

from functools import lru_cache

import pytest
from faulty_envs import Stairs, stairs_task

from treeagent.contrib.guards.shield import FORBIDDEN, Shield, ShieldedEnv
from treeagent.envs import Env, Forkable
from treeagent.envs.shop import ShopEnv, ShopOptions
from treeagent.types import ToolCall

NO_DOWN = Shield(deny=("^down$",), penalty=0.25)


@lru_cache
def shop() -> ShopEnv:
    return ShopEnv(ShopOptions(products=200))


def climb(env: Env, *calls: str | ToolCall) -> list[str]:
    """The observations of the stairs after each call of one episode."""
    env.reset(options={"task": stairs_task(1)})
    return [env.step(call)[0] for call in calls]


def test_a_forbidden_call_is_an_observation_and_nothing_else_happens() -> None:
    stairs = Stairs()
    env = ShieldedEnv(stairs, NO_DOWN)
    env.reset(options={"task": stairs_task(1)})
    env.step("up")
    reason = FORBIDDEN + "it matches '^down$'"
    assert env.step("DOWN") == (reason, -0.25, False, False, {"tool_error": reason})
    assert stairs.level == 1
    assert env.step("up")[0] == "stair 2"


def test_each_forbidden_call_takes_its_penalty_off_the_verdict_but_no_more_than_there_is() -> None:
    env = ShieldedEnv(Stairs(), NO_DOWN)
    for slips, verdict in ((0, 1.0), (1, 0.75), (3, 0.25), (6, 0.0)):
        climb(env, *["down"] * slips, "up", "up", "up")
        assert env.verify() == verdict
    climb(env, "down")
    assert env.verify() == 0.0


@pytest.mark.parametrize(
    ("pattern", "call", "forbidden"),
    [
        (r"^search\[.*lamp", "search[red Lamp]", True),
        (r"^search\[.*lamp", ToolCall("search", {"query": "red\nlamp"}), True),
        (r"^search\[.*lamp", 'search {"query": "l\\u0061mp"}', True),
        (r"^search\[.*lamp", "click[lamp]", False),
        (r"home, noon\]$", ToolCall("fly", {"to": ["home", {"by": "noon"}]}), True),
        (r"lamp", "no call of a lamp at all", True),
        (r"^click\[buy now\]$", "click[ buy \u00a0now ]", True),
    ],
)
def test_a_pattern_meets_a_call_however_it_is_written(pattern: str, call: str | ToolCall, forbidden: bool) -> None:
    env = ShieldedEnv(shop(), Shield(deny=(pattern,)))
    env.reset(options={"task": shop().tasks("train", 1)[0]})
    assert env.step(call)[0].startswith(FORBIDDEN) == forbidden


@pytest.mark.parametrize("snapshots", ["plain", "none"])
def test_going_back_restores_what_was_forbidden(snapshots: str) -> None:
    stairs = Stairs(snapshots)
    fork = Forkable(ShieldedEnv(stairs, NO_DOWN))
    fork.reset(stairs_task(1))
    fork.step("down")
    mark, key = fork.mark(), fork.env.state_key()
    for call in ("down", "up", "up", "up"):
        fork.step(call)
    assert fork.env.verify() == 0.5
    fork.goto(mark)
    assert fork.env.state_key() == key == "0.25 stairs-1 0"
    assert [fork.step("up")[0] for _ in range(3)] == ["stair 1", "stair 2", "stair 3"]
    assert fork.env.verify() == 0.75

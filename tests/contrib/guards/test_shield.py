"""Calls that are blocked before the environment."""

from functools import lru_cache

import pytest
from faulty_envs import Stairs, stairs_task

from treeagent.contrib.guards.shield import FORBIDDEN, Shield, ShieldedEnv
from treeagent.envs.shop import ShopEnv, ShopOptions
from treeagent.types import ToolCall

NO_DOWN = Shield(deny=("^down$",))


@lru_cache
def shop() -> ShopEnv:
    return ShopEnv(ShopOptions(products=200))


def test_a_forbidden_call_is_an_observation_and_nothing_else_happens() -> None:
    stairs = Stairs()
    env = ShieldedEnv(stairs, NO_DOWN)
    env.reset(options={"task": stairs_task(1)})
    env.step("up")
    reason = FORBIDDEN + "it matches '^down$'"
    assert env.step("DOWN") == (reason, 0.0, False, False, {"tool_error": reason})
    assert stairs.level == 1
    assert env.step("up")[0] == "stair 2"


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

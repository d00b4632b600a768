"""Real OpenEnv servers over WebSocket: one of treeagent's, and one without its extensions."""

import gc
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from faulty_envs import WordsPolicy
from test_pool import grow, told

from treeagent.contrib.worlds.adapters.openenv import OpenEnvEnv, from_openenv
from treeagent.envs import EnvCrashed, EnvPool, EnvTimeout, Forkable, SnapshotLost, check_env
from treeagent.envs.shop import ShopEnv, ShopOptions
from treeagent.types import ToolCall, UserError

pytest.importorskip("openenv", reason="the openenv extra is not installed")
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

OURS = """
from treeagent.envs import make_env
from treeagent.contrib.worlds.adapters.openenv import to_openenv
app = to_openenv(lambda: make_env("shop", {"products": 200}))
"""
UNVERIFIED = """
from treeagent.envs import Env
from treeagent.contrib.worlds.adapters.openenv import to_openenv
from treeagent.types import Task

class Walk(Env):
    def tasks(self, split, count, start=0):
        return [Task(f"walk-{split}-{n}", "walk", split, n) for n in range(start, start + count)]

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return "start", {}

    def step(self, action):
        self.steps += 1
        return "on", 0.25, self.steps == 2, False, {}

app = to_openenv(Walk)
"""
COUNTER = """
import os, time
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

class Add(Action):
    amount: int

class Total(Observation):
    total: int

class Counter(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    total = 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.total = seed % 3
        return Total(total=self.total)

    def step(self, action, timeout_s=None, **kwargs):
        if action.amount == 13:
            os._exit(13)
        if action.amount == 99:
            time.sleep(60)
        self.total += action.amount
        return Total(total=self.total, reward=float(self.total == 5), done=self.total >= 5)

    @property
    def state(self):
        return State()

app = create_fastapi_app(Counter, Add, Total, max_concurrent_envs=4)
"""


def started(script: str) -> "tuple[subprocess.Popen[bytes], str]":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    running = f"{textwrap.dedent(script)}\nimport uvicorn\nuvicorn.run(app, port={port}, log_level='warning')"
    process = subprocess.Popen(
        [sys.executable, "-c", running], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        assert process.poll() is None
        with socket.socket() as client:
            if not client.connect_ex(("127.0.0.1", port)):
                return process, f"http://127.0.0.1:{port}"
        time.sleep(0.1)
    raise TimeoutError("the server does not start")


@pytest.fixture(scope="module")
def shop_server() -> Iterator[str]:
    process, address = started(OURS)
    yield address
    process.kill()
    process.wait()


@pytest.fixture
def counter_server() -> Iterator[str]:
    process, address = started(COUNTER)
    yield address
    process.kill()
    process.wait()


def counter(address: str, seconds: float = 30.0) -> OpenEnvEnv:
    def act(call: str | ToolCall) -> dict[str, Any]:
        return {"amount": call if isinstance(call, str) else None}

    return from_openenv(address, name="counter", prompt="Count to five.", act=act, seconds=seconds)


def test_one_of_ours_is_the_same_over_the_wire(shop_server: str) -> None:
    here, there = ShopEnv(ShopOptions(products=200)), from_openenv(shop_server, name="shop", prompt="Buy it.")
    assert (there.snapshot_kind, there.stochastic, there.snapshot_portable) == ("exact", False, False)
    boots = ToolCall("search", {"query": "boot"})
    calls: list[str | ToolCall] = ["search[lamp]", "click[no such thing]", boots, "click[back to search]"]
    for task in there.tasks("train", 2):
        (asked,) = here.tasks("train", 1, task.seed)
        first, _ = here.reset(options={"task": asked})
        assert there.reset(options={"task": task})[0] == f"{asked.prompt}\n{first}"
        for call in calls:
            observation, reward, terminated, truncated, info = here.step(call)
            answer = there.step(call)
            assert answer[:4] == (observation, reward, terminated, truncated)
            assert ("tool_error" in answer[4]) == ("tool_error" in info)
            assert there.state_key() == here.state_key()
            place = there.snapshot()
            there.step("click[next >]")
            there.restore(place)
            assert there.state_key() == here.state_key()
    there.close()


def test_rewards_of_steps_count_where_the_served_environment_has_no_verifier() -> None:
    process, address = started(UNVERIFIED)
    there = from_openenv(address, name="walk", prompt="Walk.")
    try:
        assert there.reset(seed=0)[0] == "walk\nstart" and there.verify() is None
        assert [there.step("on")[1:3] for _ in range(2)] == [(0.25, False), (0.25, True)]
        assert there.verify() is None
    finally:
        there.close()
        process.kill()
        process.wait()


def test_the_conformance_check_passes_with_snapshots_over_the_wire(shop_server: str) -> None:
    env, other = (from_openenv(shop_server, name="shop", prompt="Buy it.") for _ in range(2))
    calls = ["search[lamp]", "search[boot]", "click[next >]", "click[back to search]"]
    report = check_env(env, env.tasks("train", 1)[0], other=other, actions=calls)
    assert report.passed, report.violations
    assert report.branches == report.equal_branches == 24
    env.close()
    other.close()


@pytest.mark.parametrize("server", ["ours", "counter"])
def test_a_pool_has_a_session_for_each_instance_and_grows_the_same_trees(
    server: str, shop_server: str, counter_server: str
) -> None:
    def make() -> OpenEnvEnv:
        return from_openenv(shop_server, name="shop", prompt="Buy it.") if server == "ours" else counter(counter_server)

    words = ("search[lamp]", "click[next >]") if server == "ours" else ("1", "2", "3")
    env, policy = make(), WordsPolicy(*words)
    tasks = env.tasks("train", 3)
    serial = told(grow(env, tasks, policy, simulations=6))
    with EnvPool(env, make, 2) as pool:
        assert told(grow(pool, tasks, policy, simulations=6)) == serial
    env.close()


def test_snapshots_outlive_the_resets_of_a_batch_and_are_replayed_in_another_session(shop_server: str) -> None:
    env = from_openenv(shop_server, name="shop", prompt="Buy it.")
    fork, marks = Forkable(env), []
    for task in env.tasks("train", 2):
        fork.reset(task)
        fork.step("search[lamp]")
        marks.append(fork.mark())
    keys = []
    for mark in marks:
        fork.goto(mark)
        keys.append(env.state_key())
    assert (fork.restored_snapshots, fork.replayed_steps) == (2, 0)
    env.close()
    for mark, key in zip(marks, keys, strict=True):
        fork.goto(mark)
        assert env.state_key() == key
    assert (fork.restored_snapshots, fork.replayed_steps) == (2, 2)
    env.close()


def test_a_snapshot_that_nobody_holds_is_released_with_the_next_one(shop_server: str) -> None:
    env, other = (from_openenv(shop_server, name="shop", prompt="Buy it.") for _ in range(2))
    env.reset(seed=0)
    first, second = env.snapshot(), env.snapshot()
    twin = replace(first)  # type: ignore[type-var]
    env.restore(twin)
    del first
    gc.collect()
    third = env.snapshot()
    with pytest.raises(SnapshotLost, match="snapshot 0 is unknown"):
        env.restore(twin)
    env.step("search[lamp]")
    key = env.state_key()
    env.restore(second)
    assert env.state_key() != key
    env.restore(third)
    with pytest.raises(SnapshotLost, match="another session"):
        other.restore(third)
    env.close()
    other.close()


def test_any_other_server_is_replayed(counter_server: str) -> None:
    env = counter(counter_server)
    assert env.snapshot_kind == "replay"
    report = check_env(env, env.tasks("train", 1)[0], actions=["1", "2"], branches=8, depth=2)
    assert report.passed, report.violations
    assert report.branches == report.equal_branches == 8
    assert env.reset(options={"task": env.tasks("test", 1)[0]})[0] == '{"total": 2}'
    observation, _, _, _, info = env.step("many")
    assert "VALIDATION_ERROR" in observation
    assert info == {"tool_error": observation}
    assert env.step("3") == ('{"total": 5}', 1.0, True, False, {})
    assert env.verify() == 1.0
    assert env.step("3")[4] == {"tool_error": "the episode is over"}
    env.close()


def test_a_server_that_hangs_or_dies_costs_the_episode(counter_server: str) -> None:
    env = counter(counter_server, seconds=3.0)
    env.reset(seed=0)
    with pytest.raises(EnvTimeout, match="step of counter took longer than 3 seconds"):
        env.step("99")
    with pytest.raises(ValueError, match="no episode has begun"):
        env.step("1")
    env.reset(seed=0)
    assert env.step("1")[0] == '{"total": 1}'
    with pytest.raises(EnvCrashed, match="step of counter failed"):
        env.step("13")
    with pytest.raises(EnvCrashed, match="reset of counter failed"):
        env.reset(seed=0)
    env.close()


def test_a_server_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match=r"the OpenEnv server http://127\.0\.0\.1:9 does not answer"):
        counter("http://127.0.0.1:9")

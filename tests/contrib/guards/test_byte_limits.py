"""Limits of what an agent reads."""

import pytest
from faulty_envs import Stairs, stairs_task
from hypothesis import given
from hypothesis import strategies as st

from treeagent.contrib.guards.limits import Bytes, LimitedEnv
from treeagent.envs import Forkable, check_env


@given(st.text(), st.integers(1, 40))
def test_an_observation_is_cut_at_a_character_and_says_so(text: str, limit: int) -> None:
    class Says(Stairs):
        def step(self, action: object) -> tuple[str, float, bool, bool, dict[str, object]]:
            return text, 0.0, False, False, {}

    env = LimitedEnv(Says(), Bytes(observation=limit))
    env.reset(options={"task": stairs_task(1)})
    read = env.step("up")[0]
    size = len(text.encode())
    if size <= limit:
        assert read == text
    else:
        kept = text[: read.rindex("\n[")]
        assert limit - 3 <= len(kept.encode()) <= limit
        assert read == f"{kept}\n[{size - len(kept.encode())} more bytes cut]"


def test_an_episode_that_has_read_too_much_is_truncated() -> None:
    env = LimitedEnv(Stairs(), Bytes(episode=14))  # room for "stair 0" and one more observation of that length
    env.reset(options={"task": stairs_task(1)})
    assert [env.step("up")[2:4] for _ in range(3)] == [(False, False), (False, True), (True, False)]


@pytest.mark.parametrize("snapshots", ["plain", "none"])
def test_going_back_restores_what_was_read(snapshots: str) -> None:
    fork = Forkable(LimitedEnv(Stairs(snapshots), Bytes(episode=200)))
    fork.reset(stairs_task(1))
    mark, key = fork.mark(), fork.env.state_key()
    fork.step("up")
    assert fork.env.state_key() == "14 stairs-1 1"
    fork.goto(mark)
    assert fork.env.state_key() == key == "7 stairs-1 0"


def test_the_conformance_check_passes_behind_it() -> None:
    env, other = (LimitedEnv(Stairs(), Bytes(6, 1000)) for _ in range(2))
    report = check_env(env, stairs_task(1), other=other)
    assert report.passed, report.violations

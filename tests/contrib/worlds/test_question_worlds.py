"""What environments of one frozen visit share: the contract, their demonstrators, and what they refuse."""

import os
import random
import sys

import pytest

from treeagent.envs import ToolEnv, check_env, make_env
from treeagent.envs.check import check_tasks

SANDBOXED = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="code is sandboxed on Linux on x86-64 only"
)


def made(name: str, **options: object) -> ToolEnv[object, object]:
    env = make_env(name, options)
    assert isinstance(env, ToolEnv)
    return env


@pytest.mark.parametrize("difficulty", [1, 2, 3])
def test_check_env_finds_nothing(difficulty: int) -> None:
    env, other = (made("qa", difficulty=difficulty) for _ in range(2))
    for task in env.tasks("train", 2):
        report = check_env(env, task, other=other)
        assert report.passed, report.violations
        assert report.equal_branches == report.branches > 5
        assert not report.skipped
    assert check_tasks(env) == []


@pytest.mark.parametrize(
    ("name", "difficulty", "count", "noise", "least", "most"),
    [
        ("qa", 2, 40, 0.4, 9, 34),
        pytest.param("python", 2, 6, 0.8, 0, 4, marks=SANDBOXED),
    ],
)
def test_a_player_solves_every_task_unless_it_slips(
    name: str, difficulty: int, count: int, noise: float, least: int, most: int
) -> None:
    env = made(name, difficulty=difficulty)

    def solved(noise: float) -> float:
        total = 0.0
        for number, task in enumerate(env.tasks("train", count)):
            env.reset(options={"task": task})
            player, rng = env.demonstrator(noise), random.Random(number)
            assert player is not None
            for _ in range(12):
                if env.step(player.act(rng)[1])[2]:
                    break
            total += env.verify()
        return total

    assert solved(0.0) == count
    assert least <= solved(noise) <= most

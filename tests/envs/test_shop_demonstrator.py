"""The scripted shopper: how often it succeeds, and that its thoughts are true."""

import random

import pytest

from treeagent.envs.shop import ShopEnv, ShopOptions


def success_and_steps(env: ShopEnv, noise: float, count: int, limit: int = 15) -> tuple[float, float]:
    """Share of episodes with reward 1, and mean steps."""
    rng = random.Random(0)
    player = env.demonstrator(noise)
    assert player is not None
    solved = steps = 0
    for task in env.tasks("train", count):
        env.reset(options={"task": task})
        for _ in range(limit):
            info = env.step(player.act(rng)[1])[4]
            assert noise or "tool_error" not in info
            steps += 1
            if env.visit.page == "done":
                break
        solved += env.verify() == 1.0
    return solved / count, steps / count


@pytest.mark.parametrize("difficulty", [1, 2, 3, 4, 5])
def test_without_noise_it_succeeds(difficulty: int) -> None:
    success, steps = success_and_steps(ShopEnv(ShopOptions(difficulty=difficulty)), 0.0, 200)
    assert success >= 0.98
    assert steps <= 8


def test_noise_is_a_dial() -> None:
    env = ShopEnv()
    rates = [success_and_steps(env, noise, 200)[0] for noise in (0.0, 0.25, 0.5, 1.0)]
    assert rates == sorted(rates, reverse=True)
    assert 0.3 <= rates[2] <= 0.5
    assert rates[3] <= 0.02
    with pytest.raises(ValueError, match=r"noise is 1\.5"):
        env.demonstrator(1.5)

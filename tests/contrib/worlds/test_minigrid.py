"""BabyAI in words."""

import random

import pytest

from treeagent.envs import check_env, make_env
from treeagent.types import UserError

gymnasium = pytest.importorskip("gymnasium", reason="the gymnasium extra is not installed")


def test_baby_ai_in_words_with_its_own_bot(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("minigrid", reason="the minigrid extra is not installed")
    for level in ("BabyAI-GoToLocal-v0", "BabyAI-PickupLoc-v0", "BabyAI-OpenRedDoor-v0"):
        env, other = (make_env("minigrid", {"level": level}) for _ in range(2))
        report = check_env(env, env.tasks("train", 1)[0], other=other)
        assert report.passed, report.violations
        assert (report.branches, report.equal_branches, report.skipped) == (24, 24, [])
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
    with pytest.raises(UserError, match="'Nowhere-v0'"):
        make_env("minigrid", {"level": "Nowhere-v0"})

"""Gymnasium's environments behind treeagent's contract: real ones, and the example of the docs."""

from pathlib import Path
from typing import Any

import pytest

from treeagent.contrib.worlds.adapters.gymnasium import GymnasiumEnv
from treeagent.envs import check_env

pytest.importorskip("gymnasium", reason="the gymnasium extra is not installed")


def paid(game: Any, reward: float) -> bool:
    return reward > 0


@pytest.mark.parametrize(
    ("name", "actions"),
    [
        ("CliffWalking-v1", {"up": 0, "right": 1, "down": 2, "left": 3}),
        ("Blackjack-v1", {"stick": 0, "hit": 1}),
        ("CartPole-v1", {"left": 0, "right": 1}),
    ],
)
def test_any_registered_environment_of_named_actions_is_played(name: str, actions: dict[str, int]) -> None:
    def wrapped() -> GymnasiumEnv:
        return GymnasiumEnv(
            name,
            prompt="Play.",
            render=lambda _, observation: repr(observation),
            actions=actions,
            success=paid,
            stochastic=name == "Blackjack-v1",
        )

    env = wrapped()
    assert env.snapshot_kind == "exact"
    report = check_env(env, env.tasks("train", 1)[0], other=wrapped(), branches=12)
    assert report.passed, report.violations
    assert report.equal_branches == report.branches > 2
    assert env.tasks("train", 1)[0].id == f"{name}-train-0"


def test_the_documentations_example_works() -> None:
    text = (Path(__file__).parents[3] / "docs" / "environment.md").read_text()
    code = text.partition("```python\n")[2].partition("```")[0]
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    env = namespace["cliff"]()
    assert env.reset()[0] == "row 3 column 0"
    for action in ("up", *["right"] * 11, "down"):
        observation, _, terminated, *_ = env.step(action)
    assert (observation, terminated, env.verify()) == ("row 3 column 11", True, 1.0)

"""Environments declare if only a success ends an episode, and the check detects a missing declaration."""

from typing import Any

import pytest
from faulty_envs import Stairs, stairs_task

from treeagent.cli.envs import find
from treeagent.envs import Env, check_env
from treeagent.types import ToolCall

EXAMPLE = "treeagent.envs.example:Example"


class Told(Stairs):
    only_success_ends = True


class Pit(Stairs):
    """The stair below the first is a pit, which ends the episode."""

    def step(self, action: str | ToolCall) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or self.level < 0, truncated, info


class ToldPit(Pit):
    only_success_ends = True


@pytest.mark.parametrize(("made", "advised"), [(Stairs, True), (Told, False), (Pit, False)])
def test_the_check_advises_to_declare_it(made: type[Env], advised: bool) -> None:
    found = find("stairs", made(), made(), 1)
    assert sum("only_success_ends = True" in each for each in found.advice) == advised


def test_a_declaration_that_does_not_hold_is_a_violation() -> None:
    [violation] = check_env(ToldPit(), stairs_task(1)).violations
    assert "only_success_ends" in violation

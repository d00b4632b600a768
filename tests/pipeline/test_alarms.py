"""Warnings about a warm start's rows, and the first cause of an update that has nothing to learn."""

import pytest
from toy_doors import Doors

from treeagent.envs import EnvDynamics
from treeagent.generators.turn import ReAct
from treeagent.pipeline.alarms import first_cause, row_alarms
from treeagent.pipeline.demonstrate import demonstrate
from treeagent.search.node import Tree


@pytest.mark.parametrize(
    ("taken", "kept", "distinct", "drawn", "named"),
    [
        (100, 95, 95, 9500, []),
        (100, 94, 94, 100, ["6 of 100", "6%"]),
        (2000, 2000, 48, 8000, ["48 of the 2000", "167 epochs"]),
    ],
)
def test_rows_left_out_and_epochs_over_few_rows_are_warned_of(
    taken: int, kept: int, distinct: int, drawn: int, named: list[str]
) -> None:
    warnings = row_alarms(taken=taken, kept=kept, distinct=distinct, drawn=drawn)
    assert len(warnings) == bool(named)
    assert all(each in warnings[0] for each in named)


def played(noise: float, doors: Doors | None = None) -> list[Tree]:
    env = doors or Doors()
    dynamics = EnvDynamics(env, max_steps=3)
    return list(demonstrate(dynamics, env.demonstrator(noise), env.tasks("train", 4), seed=0, grammar=ReAct()))


class Shut(Doors):
    def demonstrator(self, noise: float) -> "Knocks":  # type: ignore[override]
        return Knocks()


class Knocks:
    def act(self, rng: object) -> tuple[str, str]:
        return "", "knock"


def test_the_first_cause_names_failed_demonstrations_trees_and_the_commonest_refusal() -> None:
    cause = first_cause({"warm_start": {"demonstrations": 7, "demonstration_success": 0.0}}, played(0.0, Shut()))
    assert all(each in cause for each in ("7 demonstrations", "4 trees", "12 of 12", "no such door"))

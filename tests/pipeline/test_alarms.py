"""Warnings about a warm start's rows, and the first cause of an update that has nothing to learn."""

from toy_doors import Doors

from treeagent.envs import EnvDynamics
from treeagent.generators.turn import ReAct
from treeagent.pipeline.alarms import first_cause, warm_start_alarms
from treeagent.pipeline.demonstrate import demonstrate
from treeagent.search.node import Tree


def test_demonstrations_cut_off_and_rows_left_out_are_warned_of() -> None:
    assert warm_start_alarms(1, 8, 6, taken=100, kept=95) == []
    cut_off, left_out = warm_start_alarms(7, 8, 6, taken=100, kept=94)
    assert cut_off.startswith("88% of the demonstrations were cut off by environment.max_steps=6")
    assert "6 of 100" in left_out and "6%" in left_out


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

"""The planted faults are what they say, and the benchmark of the alarms goes on where it stopped."""

import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from benchmarks.alarms import HEALTHY, RunJob, raised
from benchmarks.planted import PAID, PaidLake, with_dead_head
from treeagent.agent.value_head import ValueHead
from treeagent.envs.frozenlake import FrozenLakeOptions
from treeagent.types import Task

ROWS = ["SFFF", "FFFF", "FFFF", "FFFG"]


def lake(paid: bool) -> PaidLake:
    """A lake without holes, in which the agent stands at the start."""
    env = PaidLake(FrozenLakeOptions(size=4))
    task = Task("open", f"Walk.{f' {PAID}' * paid}", "train", 0, {"map": ROWS})
    env.reset(options={"task": task})
    return env


def earned(env: PaidLake, moves: Sequence[str]) -> tuple[float, float]:
    """(process reward, verdict) of an episode."""
    infos = [env.step(move)[-1] for move in moves]
    return sum(float(str(info.get("process_reward", 0.0))) for info in infos), env.verify()


@pytest.mark.parametrize(
    ("paid", "moves", "total"),
    [
        (True, ["left", "right"] * 4, (1.0, 0.0)),  # eight steps of 1/8, and no goal
        (True, ["right"] * 3 + ["down"] * 3, (0.625, 1.0)),  # the sixth step ends at the goal and is not paid
        (True, ["jump"], (0.0, 0.0)),
        (False, ["left", "right"] * 4, (0.0, 0.0)),
    ],
)
def test_a_paid_lake_pays_more_for_wandering_than_for_the_goal(
    paid: bool, moves: list[str], total: tuple[float, float]
) -> None:
    assert earned(lake(paid), moves) == total


def test_a_paid_lake_pays_after_it_was_restored() -> None:
    env = lake(paid=True)
    place = env.snapshot()
    other = PaidLake(FrozenLakeOptions(size=4))
    other.restore(pickle.loads(pickle.dumps(place)))
    assert earned(other, ["right"])[0] == 0.125


def test_only_every_second_training_task_is_paid() -> None:
    env = PaidLake(FrozenLakeOptions(size=4))
    assert [PAID in task.prompt for task in env.tasks("train", 4, start=1)] == [False, True, False, True]
    assert not any(PAID in task.prompt for split in ("validation", "test") for task in env.tasks(split, 4))


def test_a_dead_head_gives_one_value_and_only_its_last_bias_learns(tmp_path: Path) -> None:
    source = tmp_path / "warm"
    ValueHead(8, seed=1).save(source)
    head = ValueHead.load(with_dead_head(source, tmp_path / "dead"))
    states = torch.randn(5, 8)
    assert head.value(states).unique().tolist() == [0.5]
    head.loss(states, torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0])).backward()
    moved = {name for name, weight in head.named_parameters() if weight.grad is not None and weight.grad.any()}
    assert moved == {"output.bias"}
    assert ValueHead.load(source).hidden.weight.any()  # the original is untouched


def test_alarms_are_told_by_round_and_kind() -> None:
    stages = {
        "warm_start": {"alarms": ["warm start: few rows"]},
        "round-1-rft": {"alarms": ["value head: it explains 0%: search more", "round-1-rft acts as before: no gain"]},
        "alarms-1": {"alarms": []},
        "round-2-grpo": {"skipped": True, "alarms": ["round 2 learns nothing by grpo: no rows"]},
        "alarms-2": {"alarms": ["round 2: plateau: 5% succeed; why: x", "round 2: echo trap: it fell"]},
    }
    assert list(raised(stages)) == [
        (1, "value head"), (1, "no better"), (2, "nothing learnt"), (2, "plateau"), (2, "echo trap"),
    ]  # fmt: skip


def test_a_fault_starts_from_the_warm_start_of_its_seed(tmp_path: Path) -> None:
    assert RunJob(HEALTHY, 3, tmp_path).start() is None
    assert RunJob("echo", 3, tmp_path).start() == tmp_path / "healthy" / "seed3" / "checkpoints" / "warm"
    assert RunJob("collapse", 3, tmp_path).config.update.grpo.learning_rate > 10 * (
        RunJob(HEALTHY, 3, tmp_path).config.update.grpo.learning_rate
    )

"""Environments close with their process; the tasks at the indices that a job names."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from toy_doors import Doors

from treeagent.config import EnvironmentConfig, RunConfig
from treeagent.envs.example import Example
from treeagent.run.metrics import Emit
from treeagent.stages.build import environment, tasks_at
from treeagent.types import Split, Task, UserError
from treeagent.workers.processes import run_jobs


class Short(Doors):
    """Has only two tasks per split, and returns fewer tasks without raising."""

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return super().tasks(split, 2)[start : start + count]


def test_tasks_come_in_the_order_of_their_places() -> None:
    found = tasks_at(Doors(), "test", [4, 5, 0, 9])
    assert [task.id for task in found] == ["doors-test-4", "doors-test-5", "doors-test-0", "doors-test-9"]


def test_a_split_that_holds_fewer_tasks_is_refused() -> None:
    with pytest.raises(UserError, match="gave 0 where tasks 2 to 2 of split 'train' were asked for"):
        tasks_at(Short(), "train", [0, 2])
    with pytest.raises(UserError, match="gave 2 where tasks 0 to 4 of split 'validation' were asked for"):
        tasks_at(Short(), "validation", range(5))
    with pytest.raises(UserError, match=r"split 'train' holds 33 tasks, not 34"):
        tasks_at(Example(), "train", range(34))


class Closed(Doors):
    """Tells a file when it is closed, and fails then."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self._file = file

    def close(self) -> None:
        with open(self._file, "a") as file:
            file.write("closed\n")
        raise RuntimeError("closing fails")


def build(config: RunConfig, emit: Emit) -> str:
    return environment(config).tasks("train", 1)[0].id


def test_a_worker_closes_its_environment_when_it_ends(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = EnvironmentConfig(name=f"{__name__}:Closed", options={"file": str(tmp_path / "said")})
    config = RunConfig(workers=2, environment=settings)
    assert [answer for _, answer in run_jobs(build, [config, config], config)] == ["doors-train-0"] * 2
    assert set((tmp_path / "said").read_text().split()) == {"closed"}
    assert "closing fails" not in capfd.readouterr().err

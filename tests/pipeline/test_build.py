"""Environments close with their process; the tasks at the indices that a job names."""

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from toy_doors import Doors

from treeagent.config import EnvironmentConfig, RunConfig
from treeagent.envs import EnvPool
from treeagent.envs.example import Example
from treeagent.pipeline.build import instances, tasks_at
from treeagent.pipeline.metrics import Emit
from treeagent.pipeline.processes import run_jobs
from treeagent.types import Split, Task, UserError


class Short(Doors):
    """Has only two tasks per split, and returns fewer tasks without raising."""

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return super().tasks(split, 2)[start : start + count]


def test_a_split_that_holds_fewer_tasks_is_refused() -> None:
    with pytest.raises(UserError, match="gave 0 where tasks 2 to 2 of split 'train' were asked for"):
        tasks_at(Short(), "train", [0, 2])
    with pytest.raises(UserError, match="gave 2 where tasks 0 to 4 of split 'validation' were asked for"):
        tasks_at(Short(), "validation", range(5))
    with pytest.raises(UserError, match=r"split 'train' holds 33 tasks, not 34"):
        tasks_at(Example(), "train", range(34))


class Closed(Doors):
    """Writes the number of its process to a file when it is closed, and fails then."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self._file = file

    def close(self) -> None:
        with open(self._file, "a") as file:
            file.write(f"{os.getpid()}\n")
        raise RuntimeError("closing fails")


def build(config: RunConfig, emit: Emit) -> None:
    pool = instances(config)
    if isinstance(pool, EnvPool):
        asyncio.run(pool.call(None, lambda env: env.tasks("train", 1)))


@pytest.mark.parametrize(("parallel", "environments"), [(1, 1), (2, 2)])
def test_a_worker_closes_its_environments_when_it_ends(tmp_path: Path, parallel: int, environments: int) -> None:
    """In a pool, the environment that lists tasks is one more."""
    file = tmp_path / "said"
    settings = EnvironmentConfig(name=f"{__name__}:Closed", options={"file": str(file)}, parallel=parallel)
    config = RunConfig(workers=2, environment=settings)
    list(run_jobs(build, [config, config], config))
    assert set(Counter(file.read_text().split()).values()) == {environments}

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from treeagent.config import RunConfig
from treeagent.pipeline.metrics import Emit, Event
from treeagent.pipeline.processes import run_jobs, shared_workers
from treeagent.types import UserError, WorkerLost


@dataclass(frozen=True)
class Count:
    """Emit each number below ``stop``, and return their sum."""

    stop: int
    seconds: float = 0.0


def count(job: Count, emit: Emit) -> int:
    for number in range(job.stop):
        time.sleep(job.seconds)
        emit(Event(str(job.stop), done=number))
    return sum(range(job.stop))


def process_id(job: int, emit: Emit) -> int:
    return os.getpid()


def refuse(job: int, emit: Emit) -> None:
    raise UserError(f"{job} is too much: take less")


def die(job: Path, emit: Emit) -> None:
    """Die before a child process of this process does."""
    if (child := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    job.write_text(str(child))
    os.kill(os.getpid(), signal.SIGKILL)


def test_kept_workers_do_jobs_of_several_calls_even_after_one_was_given_up() -> None:
    with shared_workers(RunConfig(workers=2)):
        first = {pid for _, pid in run_jobs(process_id, [1, 2, 3, 4], RunConfig(workers=2))}
        again = {pid for _, pid in run_jobs(process_id, [1, 2, 3, 4], RunConfig(workers=2))}
        assert len(first | again) <= 2
        assert os.getpid() not in first | again
        for _, result in run_jobs(count, [Count(1), Count(1000, seconds=1.0)], RunConfig(workers=2)):
            assert result == 0
            break
        after = [result for _, result in run_jobs(count, [Count(3), Count(4)], RunConfig(workers=2))]
        assert sorted(after) == [3, 6]


def test_a_worker_that_dies_is_told_in_one_sentence_though_what_it_started_lives_on(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(WorkerLost, match=r"ended with exit code -9 .*--resume") as caught:
        list(run_jobs(die, [tmp_path / "1", tmp_path / "2"], RunConfig(workers=2)))
    assert "\n" not in str(caught.value)
    for told in tmp_path.iterdir():
        os.kill(int(told.read_text()), signal.SIGKILL)
    assert time.monotonic() - started < 60

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
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


def chance(job: int, emit: Emit) -> float:
    return float(np.random.random())


def refuse(job: int, emit: Emit) -> None:
    raise UserError(f"{job} is too much: take less")


class GameError(Exception):
    """An exception that pickle cannot restore."""

    def __init__(self, level: int, reason: str) -> None:
        super().__init__(f"level {level}: {reason}")


def break_the_pipe(job: str, emit: Emit) -> object:
    if job == "two arguments":
        raise GameError(3, "no door")
    if job == "lock":
        raise ValueError(threading.Lock())
    return threading.Lock()


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


def test_workers_do_not_share_the_state_of_numpys_global_generator() -> None:
    assert len({value for _, value in run_jobs(chance, [1, 2], RunConfig(workers=2))}) == 2


def test_what_a_job_raises_is_raised_here_with_its_own_traceback() -> None:
    with pytest.raises(UserError) as caught:
        list(run_jobs(refuse, [9, 9], RunConfig(workers=2)))
    assert str(caught.value) == "9 is too much: take less"
    assert "in refuse" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        pytest.param("two arguments", "GameError: level 3: no door", marks=pytest.mark.slow),
        pytest.param("lock", "ValueError: .*lock", marks=pytest.mark.slow),
        ("result", "cannot pickle '_thread.lock' object"),
    ],
)
def test_what_would_not_come_through_a_pipe_is_told_all_the_same(how: str, told: str) -> None:
    with pytest.raises((RuntimeError, TypeError), match=told) as caught:
        list(run_jobs(break_the_pipe, [how, how], RunConfig(workers=2)))
    assert "in _serve" in caught.value.__notes__[0]


def test_a_worker_that_dies_is_told_in_one_sentence_though_what_it_started_lives_on(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(WorkerLost, match=r"ended with exit code -9 .*--resume") as caught:
        list(run_jobs(die, [tmp_path / "1", tmp_path / "2"], RunConfig(workers=2)))
    assert "\n" not in str(caught.value)
    for told in tmp_path.iterdir():
        os.kill(int(told.read_text()), signal.SIGKILL)
    assert time.monotonic() - started < 60

"""Where jobs run: here, in processes of this machine, or on Ray. Results come as they are ready."""

import multiprocessing
import pickle
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Protocol, TypeVar

import torch

from treeagent.config import RunConfig
from treeagent.run.metrics import Emit
from treeagent.search.growth import describe
from treeagent.types import WorkerLost

Job = TypeVar("Job")


Result = TypeVar("Result")


def run_jobs(
    work: Callable[[Job, Emit], Result], jobs: Sequence[Job], config: RunConfig, on_event: Emit = lambda event: None
) -> Iterator[tuple[Job, Result]]:
    """Results as they come; events arrive in this process while the jobs run. With one local worker, all is done here.

    Raises:
        WorkerLost: a worker has ended in the middle of a job.
    """
    if not jobs or (config.engine == "local" and (config.workers == 1 or len(jobs) == 1)):
        for job in jobs:
            with _one_thread():
                result = work(job, on_event)
            yield job, result
        return
    workers = _kept if _kept is not None else _start(min(config.workers, len(jobs)), config)
    try:
        yield from workers.run(work, jobs, on_event)
    finally:
        if workers is not _kept:
            workers.close()


@contextmanager
def kept_workers(config: RunConfig) -> Iterator[None]:
    """Inside, all calls of ``run_jobs`` share the same workers, which take seconds to start."""
    global _kept
    _kept = None if config.engine == "local" and config.workers == 1 else _start(config.workers, config)
    try:
        yield
    finally:
        if _kept is not None:
            _kept.close()
        _kept = None


class Workers(Protocol):
    """Some that do jobs side by side, one at a time each."""

    def run(
        self, work: Callable[[Job, Emit], Result], jobs: Sequence[Job], on_event: Emit
    ) -> Iterator[tuple[Job, Result]]:
        """May be given up before its end; what is running then is ended, and the next call starts workers anew."""
        ...

    def close(self) -> None: ...


def _start(count: int, config: RunConfig) -> Workers:
    if config.engine == "ray":
        from treeagent.workers.ray import RayWorkers

        return RayWorkers(count, config)
    return Processes(count)


@dataclass(frozen=True, slots=True)
class _Ended:
    """A job, as its process tells it."""

    result: Any = None
    error: Exception | None = None


class Processes:
    """Processes of this machine, each at the other end of a pipe, which closes with either of its ends."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._processes = _start_processes(count)

    def run(
        self, work: Callable[[Job, Emit], Result], jobs: Sequence[Job], on_event: Emit
    ) -> Iterator[tuple[Job, Result]]:
        self._processes = self._processes or _start_processes(self._count)
        waiting = deque(jobs)
        running: dict[Connection, Job] = {}

        def hand_out(pipe: Connection) -> None:
            if waiting:
                running[pipe] = waiting.popleft()
                self._send(pipe, (work, running[pipe]))

        try:
            for pipe in self._processes:
                hand_out(pipe)
            while running:
                for ready in wait(list(running)):
                    assert isinstance(ready, Connection)
                    match self._receive(ready):
                        case _Ended(error=Exception() as error):
                            raise error
                        case _Ended(result):
                            job = running.pop(ready)
                            hand_out(ready)  # first: the caller may take its time
                            yield job, result
                        case event:
                            on_event(event)
        except BaseException:  # GeneratorExit, too: the caller has enough, and what still runs is not waited for
            for process in self._processes.values():
                process.terminate()
            self.close()
            raise

    def close(self) -> None:
        for pipe, process in self._processes.items():
            pipe.close()
            process.join()
        self._processes = {}

    def _send(self, pipe: Connection, message: object) -> None:
        with self._told_of_its_end(pipe):
            pipe.send(message)

    def _receive(self, pipe: Connection) -> Any:
        with self._told_of_its_end(pipe):
            return pipe.recv()

    @contextmanager
    def _told_of_its_end(self, pipe: Connection) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError):
            process = self._processes[pipe]
            process.join()
            raise WorkerLost(
                f"worker process {process.pid} ended with exit code {process.exitcode} in the middle of a job, as it "
                "does when memory is short: continue with --resume, and with fewer workers if it happens again"
            ) from None


def _start_processes(count: int) -> dict[Connection, SpawnProcess]:
    """Each is ready when its first job comes, or soon after."""
    # spawn: a forked copy of a process that has run torch can hang in its thread pools, and inherits our locks.
    context = multiprocessing.get_context("spawn")
    processes: dict[Connection, SpawnProcess] = {}
    for _ in range(count):
        here, there = context.Pipe()
        processes[here] = context.Process(target=_serve, args=(there,))
        processes[here].start()
        there.close()
    return processes


def _serve(pipe: Connection) -> None:
    """A worker process: jobs until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    torch.set_num_threads(1)  # for small models threads cost more than they bring
    with suppress(EOFError, ConnectionError):
        while True:
            work, job = pipe.recv()
            try:
                ended = _Ended(work(job, pipe.send))
                pickle.dumps(ended)  # here its error can be told, in the pipe it would end this process
            except Exception as error:
                ended = _Ended(error=_portable(error))
            pipe.send(ended)


def _portable(error: Exception) -> Exception:
    """The error with its traceback, which itself stays in this process, as a note; where it would not come through a
    pipe, one that says as much."""
    told = traceback.format_exc()
    try:
        same = type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:  # whatever a stranger's class does when it is taken apart or made again
        same = False
    kept = error if same else RuntimeError(describe(error))
    kept.add_note(told)
    return kept


@contextmanager
def _one_thread() -> Iterator[None]:
    """As in a worker, so that sums are taken in the same order wherever a job runs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


_kept: Workers | None = None
"""The workers that ``kept_workers`` shares."""

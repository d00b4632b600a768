"""Run jobs in this process or in worker processes of this machine.

A job is a value, so its result does not depend on where it runs or on the number of workers.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess, SpawnContext, SpawnProcess
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from treeagent.config import RunConfig
from treeagent.envs.worker import kill_at_close
from treeagent.pipeline.metrics import Emit
from treeagent.search.searcher import describe
from treeagent.types import WorkerLost
from treeagent.visible import guard_streams

Job = TypeVar("Job")
Result = TypeVar("Result")
_END_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""Signals that end a run."""
_CLOSE_SECONDS = 10.0
"""Seconds that workers, all together, may take to end."""
_SIGNAL_SECONDS = 0.2
"""Seconds to wait after a signal has ended a worker, so that the same signal reaches this process, too, if it was sent
to both."""


class Workers(Protocol):
    """Workers that run many jobs one after another: ``Processes``, or what ``start_workers`` gives."""

    def run(
        self, work: Callable[[Job, Emit], Result], jobs: Sequence[Job], on_event: Emit
    ) -> Iterator[tuple[Job, Result]]: ...

    def kill(self) -> None:
        """End the workers without waiting for running jobs."""

    def close(self) -> None:
        """End the workers. No job may be running."""


def run_jobs(
    work: Callable[[Job, Emit], Result],
    jobs: Sequence[Job],
    config: RunConfig,
    on_event: Emit = lambda event: None,
) -> Iterator[tuple[Job, Result]]:
    """Run ``work``, which can be pickled, on every job and yield (job, result) pairs in the order in which they finish.

    With one worker on this machine, or with a single job, jobs run in this process. ``on_event`` is called in this
    process with each event that a job sends. ``WorkerLost`` tells of a worker that ended in the middle of a job.
    """
    if not jobs or (start_workers is None and (config.workers <= 1 or len(jobs) == 1)):
        for job in jobs:
            threads = torch.get_num_threads()
            # As in a worker, so that floating-point sums have the same order wherever a job runs.
            torch.set_num_threads(config.threads or 1)
            try:
                result = work(job, on_event)
            finally:
                torch.set_num_threads(threads)
            yield job, result
        return
    workers = _shared if _shared is not None else _start(min(config.workers, len(jobs)), config)
    try:
        yield from workers.run(work, jobs, on_event)
    finally:
        if workers is not _shared:
            workers.close()


@contextmanager
def shared_workers(config: RunConfig) -> Iterator[None]:
    """Context in which all calls of ``run_jobs`` share one set of workers, since workers take seconds to start."""
    global _shared
    _shared = None if start_workers is None and config.workers <= 1 else _start(config.workers, config)
    try:
        yield
    except BaseException:  # such as Ctrl-C: do not wait for workers that are still importing
        if _shared is not None:
            _shared.kill()
        raise
    finally:
        if _shared is not None:
            _shared.close()
        _shared = None


def end_shared_workers() -> None:
    """End the workers of ``shared_workers``, so that other processes can use what they hold, such as the memory of a
    GPU. The next ``run_jobs`` starts new ones. No job may be running."""
    if _shared is not None:
        _shared.close()


def _start(count: int, config: RunConfig) -> Workers:
    return Processes(count, config.threads or 1) if start_workers is None else start_workers(count, config)


@dataclass(frozen=True, slots=True)
class _JobResult:
    """The last message of a job: its result or its error."""

    result: Any = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class _Worker:
    process: ForkServerProcess | SpawnProcess
    lifeline: Connection
    """The writing end of a pipe. The kernel kills the worker when it is closed, which the end of this process does."""


class Processes:
    """Worker processes of this machine. Each is connected by a pipe and runs one job at a time.

    A worker ends when its pipe closes, and is killed at once when this process ends. If the caller of ``run`` stops
    early, running jobs are killed, and the next call starts new workers.
    """

    def __init__(self, count: int, threads: int = 1) -> None:
        self._count, self._threads = count, threads
        self._workers = _start_processes(count, threads)

    def run(
        self, work: Callable[[Job, Emit], Result], jobs: Sequence[Job], on_event: Emit
    ) -> Iterator[tuple[Job, Result]]:
        self._workers = self._workers or _start_processes(self._count, self._threads)
        waiting, running = deque(jobs), dict[Connection, Job]()

        def assign_job(pipe: Connection) -> None:
            if waiting:
                running[pipe] = waiting.popleft()
                with self._loss_reported(pipe):
                    pipe.send((work, running[pipe]))

        try:
            for pipe in self._workers:
                assign_job(pipe)
            while running:
                for ready in wait(list(running)):
                    assert isinstance(ready, Connection)
                    with self._loss_reported(ready):
                        message = ready.recv()
                    if not isinstance(message, _JobResult):
                        on_event(message)
                        continue
                    if message.error is not None:
                        raise message.error
                    job = running.pop(ready)
                    assign_job(ready)  # before the yield, since the caller may take a long time
                    yield job, message.result
        except BaseException:  # also GeneratorExit, if the caller stops early: running jobs are killed
            self.kill()
            raise

    def kill(self) -> None:
        """End the workers without waiting for running jobs."""
        for worker in self._workers.values():
            worker.process.kill()  # terminate() does not end a job that handles or ignores SIGTERM
        self.close()

    def close(self) -> None:
        """End the workers. No job may be running. A worker that has not closed its environments after
        ``_CLOSE_SECONDS`` is killed."""
        for pipe in self._workers:
            pipe.close()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for worker in self._workers.values():
            worker.process.join(max(deadline - time.monotonic(), 0.0))
            worker.process.kill()
            worker.process.join()
            worker.lifeline.close()
        self._workers = {}

    @contextmanager
    def _loss_reported(self, pipe: Connection) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError):
            process = self._workers[pipe].process
            process.join()
            # If the signal went to the whole process group, this process gets it, too, and its handler reports it.
            time.sleep(_SIGNAL_SECONDS if process.exitcode in (-signal.SIGTERM, -signal.SIGHUP) else 0.0)
            raise WorkerLost(
                f"worker process {process.pid} ended with exit code {process.exitcode} in the middle of a job, as it "
                "does when memory is short: continue with --resume, and with fewer workers if it happens again"
            ) from None


def _start_processes(count: int, threads: int) -> "dict[Connection, _Worker]":
    """Start worker processes. Those of a machine with a GPU are still importing modules when this function returns."""
    context = _context()
    workers: dict[Connection, _Worker] = {}
    try:
        with _end_signals_blocked():  # none may arrive between the start of a worker and its entry in the dictionary
            for _ in range(count):
                parent_end, worker_end = context.Pipe()
                lifeline, ours = context.Pipe(duplex=False)
                process = context.Process(target=_serve, args=(worker_end, lifeline, threads))
                process.start()
                assert process.pid is not None
                kill_at_close(lifeline.fileno(), process.pid)
                workers[parent_end] = _Worker(process, ours)
                worker_end.close()
                lifeline.close()
    except BaseException:  # such as a signal that was pending and arrives when it is unblocked
        for worker in workers.values():
            worker.process.kill()
        raise
    return workers


def _context() -> ForkServerContext | SpawnContext:
    """How worker processes are started: as forks of a server that has imported what this process has imported, but has
    no threads of torch. With a GPU each worker imports for itself, since CUDA does not work in a fork."""
    if sys.platform != "linux" or torch.accelerator.is_available():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([name for name in sys.modules if name.partition(".")[0] == "treeagent"])
    with _end_signals_blocked():
        forkserver.ensure_running()
    # Wait for the imports here, where Ctrl-C interrupts the wait: the server's first process starts after them.
    first = context.Process(target=os.getpid)
    first.start()
    first.join()
    return context


@contextmanager
def _end_signals_blocked() -> Iterator[None]:
    """Context in which signals that end a run wait. Processes that are started in it inherit the blocked signals.
    Otherwise Ctrl-C would interrupt a worker that is still importing torch and does not ignore the signal yet, and its
    traceback would appear in the terminal."""
    resource_tracker.ensure_running()  # started here, because its first start unblocks SIGINT
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _END_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _serve(pipe: Connection, lifeline: Connection, threads: int) -> None:
    """Main function of a worker process: run jobs until the pipe closes. It keeps its end of ``lifeline`` open."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent handles it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _END_SIGNALS)
    # The parent notices the end of a worker when the pipe closes. A process that a job has started may live longer, so
    # it must not keep the pipe open.
    os.register_at_fork(after_in_child=pipe.close)
    os.set_inheritable(pipe.fileno(), False)
    guard_streams()
    torch.set_num_threads(threads)
    np.random.seed()  # environments may use NumPy's global generator, and forks of one process begin with one state
    with suppress(EOFError, ConnectionError):
        while True:
            work, job = pipe.recv()
            try:
                ended = _JobResult(work(job, pipe.send))
                pickle.dumps(ended)  # a pickling error is reported here, but in pipe.send it would end this process
            except Exception as error:
                ended = _JobResult(error=_picklable(error))
            pipe.send(ended)


def _picklable(error: Exception) -> Exception:
    """Return the error with its traceback as a note, since tracebacks cannot be pickled. An error that cannot be
    pickled itself becomes a RuntimeError with the same text."""
    trace = traceback.format_exc()
    try:
        same = type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:  # an exception of a user's environment may raise anything when it is pickled
        same = False
    raised = error if same else RuntimeError(describe(error))
    raised.add_note(trace)
    return raised


_shared: Workers | None = None
"""The workers that ``shared_workers`` shares; None outside of it."""
start_workers: Callable[[int, RunConfig], Workers] | None = None
"""Starts workers elsewhere than on this machine, such as on a cluster; None runs jobs here."""

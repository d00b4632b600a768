"""Run jobs in this process or in worker processes of this machine. Unlike those of ``concurrent.futures``, the workers
pass on the events of a job, and end when this process is killed."""

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
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import numpy as np
import torch

from treeagent.config import RunConfig
from treeagent.envs.worker import kill_at_close
from treeagent.pipeline.metrics import Emit, Event
from treeagent.search.searcher import describe
from treeagent.types import WorkerLost
from treeagent.visible import guard_streams

Job = TypeVar("Job")
Result = TypeVar("Result")
_END_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_CLOSE_SECONDS = 10.0
"""Seconds that workers, all together, may take to end."""


_shared: Any = None
"""The workers that ``shared_workers`` shares: ``Processes``, or what ``start_workers`` gives; None outside of it."""
start_workers: Callable[[int, RunConfig], Any] | None = None
"""Starts workers elsewhere, such as on a cluster, with the methods of ``Processes``; None runs jobs on this machine."""


def run_jobs(
    work: Callable[[Job, Emit], Result], jobs: Sequence[Job], config: RunConfig, on_event: Emit = lambda event: None
) -> Iterator[tuple[Job, Result]]:
    """Run ``work``, which can be pickled, on every job and yield (job, result) pairs in the order in which they finish.
    With one worker, or a single job, jobs run in this process, as ``on_event`` always does."""
    if not jobs or (start_workers is None and (config.workers <= 1 or len(jobs) == 1)):
        for job in jobs:
            threads = torch.get_num_threads()
            torch.set_num_threads(config.threads or 1)  # as in a worker: sums of floats have the same order everywhere
            try:
                result = work(job, on_event)
            finally:
                torch.set_num_threads(threads)
            yield job, result
    elif _shared is None:
        with shared_workers(config):
            yield from run_jobs(work, jobs, config, on_event)
    else:
        yield from _shared.run(work, jobs, on_event)


@contextmanager
def shared_workers(config: RunConfig) -> Iterator[None]:
    """Context in which all calls of ``run_jobs`` share workers, which take seconds to start."""
    global _shared
    if start_workers is not None:
        _shared = start_workers(config.workers, config)
    elif config.workers > 1:
        _shared = Processes(config.workers, config.threads or 1)
    try:
        yield
    except BaseException:  # such as Ctrl-C: do not wait for workers that are still importing
        if _shared is not None:
            _shared.kill()
        raise
    finally:
        end_shared_workers()
        _shared = None


def end_shared_workers() -> None:
    """End the idle workers of ``shared_workers``, to free what they hold, such as the memory of a GPU. The next
    ``run_jobs`` starts new ones."""
    if _shared is not None:
        _shared.close()


class Processes:
    """Worker processes of this machine, each connected by a pipe. A worker ends when its pipe closes, and is killed if
    this process ends. If the caller of ``run`` stops early, running jobs are killed."""

    def __init__(self, count: int, threads: int = 1) -> None:
        self._count, self._threads = count, threads
        self._workers: dict[Connection, BaseProcess] = {}
        self._lifelines: list[Connection] = []
        """Writing ends of pipes, one a worker. The kernel kills a worker when its own is closed."""
        self._start()

    def _start(self) -> None:
        context = _context()
        try:
            with _end_signals_blocked():  # none may arrive between the start of a worker and its entry here
                for _ in range(self._count):
                    parent_end, worker_end = context.Pipe()
                    lifeline, ours = context.Pipe(duplex=False)
                    process = context.Process(target=_serve, args=(worker_end, lifeline, self._threads))
                    process.start()
                    assert process.pid is not None
                    kill_at_close(lifeline.fileno(), process.pid)
                    self._workers[parent_end] = process
                    self._lifelines.append(ours)
                    worker_end.close()
                    lifeline.close()
        except BaseException:  # such as a signal that was pending and arrives when it is unblocked
            self.kill()
            raise

    def run(
        self, work: Callable[[Job, Emit], Result], jobs: Sequence[Job], on_event: Emit
    ) -> Iterator[tuple[Job, Result]]:
        if not self._workers:
            self._start()
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
                    if isinstance(message, Event):
                        on_event(message)
                        continue
                    result, error = message
                    if error is not None:
                        raise error
                    job = running.pop(ready)
                    assign_job(ready)  # before the yield, since the caller may take a long time
                    yield job, result
        except BaseException:  # also GeneratorExit, if the caller stops early: running jobs are killed
            self.kill()
            raise

    def kill(self) -> None:
        """End the workers without waiting for running jobs."""
        for process in self._workers.values():
            process.kill()  # terminate() does not end a job that handles or ignores SIGTERM
        self.close()

    def close(self) -> None:
        """End the idle workers; one that has not closed its environments after ``_CLOSE_SECONDS`` is killed."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        try:
            for pipe in self._workers:
                pipe.close()
            for process in self._workers.values():
                process.join(max(deadline - time.monotonic(), 0.0))
        finally:  # also after a Ctrl-C in between, or the exit of this process would wait for a worker forever
            for process in self._workers.values():
                process.kill()
                process.join()
        for lifeline in self._lifelines:
            lifeline.close()
        self._workers, self._lifelines = {}, []

    @contextmanager
    def _loss_reported(self, pipe: Connection) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError):
            process = self._workers[pipe]
            process.join()
            # If the signal went to the whole process group, this process gets it, too, and its handler reports it.
            time.sleep(0.2 if process.exitcode in (-signal.SIGTERM, -signal.SIGHUP) else 0.0)
            raise WorkerLost(
                f"worker process {process.pid} ended with exit code {process.exitcode} in the middle of a job, as it "
                "does when memory is short: continue with --resume, and with fewer workers if it happens again"
            ) from None


def _context() -> ForkServerContext | SpawnContext:
    """How workers are started: as forks of a server that has imported what this process has, but has no threads of
    torch. With a GPU each worker imports for itself, since CUDA does not work in a fork."""
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
    """Context in which signals that end a run wait, also in processes started in it: otherwise Ctrl-C would show the
    traceback of a worker that is still importing torch."""
    resource_tracker.ensure_running()  # started here, because its first start unblocks SIGINT
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _END_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _serve(pipe: Connection, lifeline: Connection, threads: int) -> None:
    """Run jobs in a worker process until the pipe closes. It keeps its end of ``lifeline`` open."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent handles it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _END_SIGNALS)
    # The parent notices the end of a worker when the pipe closes, so no process that a job starts may keep it open.
    os.register_at_fork(after_in_child=pipe.close)
    os.set_inheritable(pipe.fileno(), False)
    guard_streams()
    torch.set_num_threads(threads)
    np.random.seed()  # environments may use NumPy's global generator, and forks of one process begin with one state
    with suppress(EOFError, ConnectionError):
        while True:
            work, job = pipe.recv()
            try:
                ended: tuple[object, Exception | None] = work(job, pipe.send), None
                pickle.dumps(ended)  # a pickling error is reported here, but in pipe.send it would end this process
            except Exception as error:
                ended = None, _picklable(error)
            pipe.send(ended)


def _picklable(error: Exception) -> Exception:
    """The error, or a RuntimeError with its text, with the traceback, which cannot be pickled, as a note."""
    trace = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception of a user's environment may raise anything when it is pickled
        error = RuntimeError(describe(error))
    error.add_note(trace)
    return error

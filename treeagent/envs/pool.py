"""A pool of instances of an environment in one process. Each has its own thread, so that their steps overlap."""

import asyncio
import atexit
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from multiprocessing.util import Finalize
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, Self, TypeVar

from treeagent.envs.base import Env
from treeagent.types import waiting

Answer = TypeVar("Answer")
_Job = tuple[Future[Any], Callable[[], Any]]
_CLOSE_SECONDS = 5.0
"""Seconds that the instances of a pool, all together, may take to close."""


class EnvPool:
    """At most ``size`` instances of an environment. An instance is created when it is first needed. All its calls,
    including its creation and closing, come from one thread, as SQLite or a browser driver requires.

    If a call is cancelled, by Ctrl-C or a time limit, a new instance replaces the one that runs it, which is closed
    once the call returns. If the call never returns, its thread stays, but does not keep the process from ending.

    An episode normally stays on one instance. If snapshots are exact and the environment is not stochastic, any
    instance can continue any episode, so each step runs on whichever instance is free.

    The pool closes its instances when its context manager exits, or else when the process ends.

    Args:
        env: an environment of the same kind, for its attributes and tools. The pool neither steps nor closes it.
        make: creates an instance. It is called in the instance's thread.
        size: most instances at the same time.
    """

    def __init__(self, env: Env, make: Callable[[], Env], size: int) -> None:
        self.env = env
        self._instances = [_Instance(make) for _ in range(size)]
        self._any_instance = env.snapshot_kind == "exact" and not env.stochastic
        self._numbers = count()
        self._loop: asyncio.AbstractEventLoop | None = None
        atexit.register(self.close)
        self._finalizer = Finalize(None, self.close, exitpriority=1)  # in a worker process, where atexit does nothing

    def assign_instance(self) -> int | None:
        """Return the number of the instance for the next episode; None if any instance can play it."""
        return None if self._any_instance else next(self._numbers) % len(self._instances)

    async def call(self, number: int | None, work: Callable[[Env], Answer]) -> Answer:
        """Run ``work`` in the thread of an instance. Returns its result, or raises its exception.

        An instance runs one call at a time; calls with the same ``number`` run in the order in which they were made.
        The time limit of a step (``types.time_limit``) starts when ``work`` starts: the time to wait for an instance or
        to create one does not count.
        """
        locks = self._locks()
        lock = locks.any if number is None else locks.by_instance[number]
        with waiting():
            await lock.acquire()
        instance = locks.free.pop() if number is None else self._instances[number]
        try:
            with waiting():
                env = await instance.started()
            return await instance.run(lambda: work(env))
        finally:
            if number is None:
                locks.free.append(instance)
            lock.release()

    def close(self) -> None:
        """Close all instances. The call does not wait longer than ``_CLOSE_SECONDS`` for them."""
        atexit.unregister(self.close)
        self._finalizer.cancel()
        deadline = time.monotonic() + _CLOSE_SECONDS
        closing = [each for instance in self._instances for each in instance.close()]
        for each in closing:
            with contextlib.suppress(Exception):  # an error of one must not keep the others from being closed
                each.result(max(deadline - time.monotonic(), 0.0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _locks(self) -> "_Locks":
        """Return the locks for the running event loop. A lock belongs to one loop, and a pool is used in many."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._current = loop, _Locks(self._instances)
        return self._current


class _Locks:
    """Locks that decide which call may use an instance. Both kinds of lock are first come, first served."""

    def __init__(self, instances: Sequence["_Instance"]) -> None:
        self.by_instance = [asyncio.Lock() for _ in instances]
        self.any = asyncio.Semaphore(len(instances))
        self.free = list(reversed(instances))


class _Instance:
    """A slot of the pool, which holds one environment at a time."""

    def __init__(self, make: Callable[[], Env]) -> None:
        self._make = make
        self._thread: _EnvThread | None = None
        self._closing = list[Future[None]]()

    async def started(self) -> Env:
        """Return the environment; create it if there is none."""
        if self._thread is None:
            self._thread = _EnvThread()
        if self._thread.env is None:
            await self.run(partial(self._thread.begin, self._make))
        assert self._thread.env is not None
        return self._thread.env

    async def run(self, work: Callable[[], Answer]) -> Answer:
        """Run ``work`` in the thread. Returns its result, or raises its exception."""
        assert self._thread is not None
        future = self._thread.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel() and not future.done():
                self.close()
            raise

    def close(self) -> Sequence[Future[None]]:
        """Begin to close the environment. Returns the futures of all closings in progress: of this environment, and of
        earlier ones with a cancelled call."""
        if self._thread is not None:
            self._closing = [each for each in self._closing if not each.done()] + [self._thread.end()]
            self._thread = None
        return self._closing


class _EnvThread:
    """One environment and its thread."""

    def __init__(self) -> None:
        self.env: Env | None = None
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        # A daemon thread: a hung call in a thread of concurrent.futures would keep the process from ending.
        Thread(target=_serve, args=(self._jobs,), name="environment", daemon=True).start()

    def submit(self, work: Callable[[], Answer]) -> Future[Answer]:
        future = Future[Answer]()
        self._jobs.put((future, work))
        return future

    def begin(self, make: Callable[[], Env]) -> None:
        self.env = make()

    def end(self) -> Future[None]:
        """Make the thread close its environment and end after the call that it is running."""
        closed = self.submit(self._close)
        self._jobs.put(None)
        return closed

    def _close(self) -> None:
        if self.env is not None:
            self.env.close()


def _serve(jobs: "SimpleQueue[_Job | None]") -> None:
    """Main function of an instance's thread: run jobs until None arrives."""
    while (job := jobs.get()) is not None:
        future, work = job
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except StopIteration as error:  # a future cannot raise it in a coroutine
                raised = RuntimeError(f"the environment raised {error!r}")
                raised.__cause__ = error
                future.set_exception(raised)
            except BaseException as error:  # raised again where the call was made
                future.set_exception(error)
        del job, future, work  # otherwise the marks of a finished tree would stay alive until the next call

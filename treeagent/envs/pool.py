"""A pool of instances of an environment in one process. Each has its own thread, so that their steps overlap."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from treeagent.envs.base import Env

Answer = TypeVar("Answer")
_CLOSE_SECONDS = 5.0
"""Seconds that the instances of a pool, all together, may take to close."""


class EnvPool:
    """At most ``size`` instances of an environment, which ``make`` creates when they are first needed. All calls of
    one, including its creation and closing, come from one thread, as SQLite or a browser driver requires. ``env`` is
    another instance, for its attributes and tools.

    If a call is cancelled, a new instance replaces the one that runs it. An episode stays on
    one instance, unless snapshots are exact and the environment is not stochastic.
    """

    def __init__(self, env: Env, make: Callable[[], Env], size: int) -> None:
        self.env = env
        self._make, self._size = make, size
        self._any_instance = env.snapshot_kind == "exact" and not env.stochastic
        self._numbers = count()
        self._threads: list[_EnvThread | None] = [None] * size
        self._closing = list[Future[None]]()
        self._loop: asyncio.AbstractEventLoop | None = None

    def assign_instance(self) -> int | None:
        """Return the number of the instance for the next episode; None if any instance can play it."""
        return None if self._any_instance else next(self._numbers) % self._size

    async def call(self, number: int | None, work: Callable[[Env], Answer]) -> Answer:
        """Run ``work`` in the thread of an instance, one call at a time."""
        if self._loop is not (loop := asyncio.get_running_loop()):  # a lock belongs to one loop
            self._loop, self._any = loop, asyncio.Semaphore(self._size)
            self._locks = [asyncio.Lock() for _ in range(self._size)]
            self._free = list(reversed(range(self._size)))
        lock = self._any if number is None else self._locks[number]
        await lock.acquire()
        place = self._free.pop() if number is None else number
        try:
            thread = self._threads[place]
            if thread is None:
                thread = self._threads[place] = _EnvThread(self._make)
            return await self._run(place, thread, work)
        finally:
            if number is None:
                self._free.append(place)
            lock.release()

    def close(self) -> None:
        """Close all instances. The call does not wait longer than ``_CLOSE_SECONDS`` for them."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        for place in range(self._size):
            self._drop(place)
        for each in self._closing:
            with contextlib.suppress(Exception):  # an error of one must not keep the others from being closed
                each.result(max(deadline - time.monotonic(), 0.0))

    async def _run(self, place: int, thread: "_EnvThread", work: Callable[[Env], Answer]) -> Answer:
        future = thread.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel() and not future.done():
                self._drop(place)
            raise

    def _drop(self, place: int) -> None:
        """Begin to close an instance, after the call that it is running; the next call makes another."""
        if (thread := self._threads[place]) is not None:
            self._closing = [*(each for each in self._closing if not each.done()), thread.submit(None)]
            self._threads[place] = None


class _EnvThread:
    """One environment, which the first job makes, and its thread."""

    def __init__(self, make: Callable[[], Env]) -> None:
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[Env], Any] | None]] = SimpleQueue()
        # A daemon thread: a hung call in a thread of concurrent.futures would keep the process from ending.
        Thread(target=self._serve, args=(make,), name="environment", daemon=True).start()

    def submit(self, work: Callable[[Env], Answer] | None) -> Future[Answer]:
        """Run ``work`` in the thread; None closes the environment and ends the thread."""
        future = Future[Answer]()
        self._jobs.put((future, work))
        return future

    def _serve(self, make: Callable[[], Env]) -> None:
        env: Env | None = None
        ends = False
        while not ends:
            future, work = self._jobs.get()
            ends = work is None
            if future.set_running_or_notify_cancel():
                try:
                    if work is not None:
                        env = make() if env is None else env
                        future.set_result(work(env))
                    else:
                        if env is not None:
                            env.close()
                        future.set_result(None)
                except StopIteration as error:  # a future cannot raise it in a coroutine
                    future.set_exception(RuntimeError(f"the environment raised {error!r}"))
                except BaseException as error:  # raised again where the call was made
                    future.set_exception(error)
            del future, work  # otherwise the marks of a finished tree would stay alive until the next call

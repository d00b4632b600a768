"""Environments whose methods are coroutines, and an adapter that runs them as an ordinary ``Env``."""

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import cache
from threading import Thread
from typing import Any, Protocol, TypeVar

from treeagent.envs.answers import ENDING, broken_by
from treeagent.envs.base import Demonstrator, Env, SnapshotKind, StepResult, ToolSpec
from treeagent.types import Origin, Split, Task, ToolCall

Answer = TypeVar("Answer")


class AsyncEnv(Protocol):
    """An environment whose methods are coroutines; for example, one that uses a network through an asyncio client.

    Subclass it and write ``reset``, ``step`` and ``tasks``. Every member means the same as in ``Env``. All environments
    of a process run in one event loop and are also created in it, so a client may be bound to that loop. A method must
    not block the loop. A call that is given up, such as after a time limit or Ctrl-C, is cancelled. With
    ``environment.parallel`` many calls run concurrently.
    """

    snapshot_kind: SnapshotKind = "replay"
    stochastic: bool = False
    snapshot_portable: bool = True
    only_success_ends: bool = False
    origin: Origin = "real"

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]: ...

    async def step(self, action: str | ToolCall) -> StepResult: ...

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]: ...

    def variations(self, task: Task, rng: random.Random) -> Sequence[Task]:
        return ()

    def tools(self) -> Sequence[ToolSpec]:
        return ()

    async def legal_actions(self) -> list[str] | None:
        return None

    async def verify(self) -> float | None:
        return None

    async def reference(self) -> Sequence[str | ToolCall] | None:
        return None

    async def snapshot(self) -> object:
        raise RuntimeError(f"{type(self).__name__} has no snapshots: its snapshot_kind must not be 'exact'")

    async def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        raise RuntimeError(f"{type(self).__name__} has no snapshots: its snapshot_kind must not be 'exact'")

    async def state_key(self) -> str | None:
        return None

    def demonstrator(self, noise: float) -> Demonstrator | None:
        return None

    async def close(self) -> None:
        return None

    def interrupt(self) -> None:
        return None


class WaitingEnv(Env):
    """An ``AsyncEnv`` as an ``Env``: each call runs in the event loop that all such environments share, and blocks
    until it has finished.

    Args:
        make: called in the loop; returns the environment, or a coroutine that creates it.
    """

    def __init__(self, make: Callable[[], AsyncEnv | Awaitable[AsyncEnv]]) -> None:
        self._call: Future[Any] | None = None

        async def made() -> AsyncEnv:
            found = make()
            return await found if inspect.isawaitable(found) else found

        env = self._env = self._wait_for(made())
        self.snapshot_kind, self.stochastic = env.snapshot_kind, env.stochastic
        self.snapshot_portable, self.origin = env.snapshot_portable, env.origin
        self.only_success_ends = env.only_success_ends

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        return self._wait_for(self._env.reset(seed=seed, options=options))

    def step(self, action: str | ToolCall) -> StepResult:
        return self._wait_for(self._env.step(action))

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return self._env.tasks(split, count, start)

    def variations(self, task: Task, rng: random.Random) -> Sequence[Task]:
        return self._env.variations(task, rng)

    def tools(self) -> Sequence[ToolSpec]:
        return self._env.tools()

    def legal_actions(self) -> list[str] | None:
        return self._wait_for(self._env.legal_actions())

    def verify(self) -> float | None:
        return self._wait_for(self._env.verify())

    def reference(self) -> Sequence[str | ToolCall] | None:
        return self._wait_for(self._env.reference())

    def snapshot(self) -> object:
        return self._wait_for(self._env.snapshot())

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        self._wait_for(self._env.restore(snapshot, reseed=reseed))

    def state_key(self) -> str | None:
        return self._wait_for(self._env.state_key())

    def demonstrator(self, noise: float) -> Demonstrator | None:
        return self._env.demonstrator(noise)

    def close(self) -> None:
        self._wait_for(self._env.close())

    def interrupt(self) -> None:
        """Cancel the call that runs in another thread."""
        if self._call is not None:
            self._call.cancel()
        self._env.interrupt()

    def _wait_for(self, answer: Awaitable[Answer]) -> Answer:
        async def run() -> Answer:
            try:
                return await answer
            except ENDING as error:  # it would end the shared loop, and the caller would wait forever
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                    raise
                raise broken_by(error) from error

        future = asyncio.run_coroutine_threadsafe(run(), _loop())
        self._call = future
        try:
            return future.result()
        except CancelledError:
            raise InterruptedError("the call was given up") from None
        except BaseException:  # such as Ctrl-C, which interrupts the waiting thread only
            future.cancel()
            raise


def is_async(env: object) -> bool:
    """Whether ``env`` is an ``AsyncEnv`` or a class of such environments."""
    return inspect.iscoroutinefunction(getattr(env, "step", None))


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop that all asynchronous environments of this process share. It runs until the process
    ends."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="async environments", daemon=True).start()
    return loop

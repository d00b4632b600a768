"""One call of a model for all trees that wait for it, and no waiting for the slow steps of a few.

Each tree grows in a task of its own. A tree that needs a model waits here until no other tree can go on without an
answer; then one call answers all that wait for the same model. A tree whose step is slow must not hold up the others,
so they wait for it at most half as long as the model took last (``MAX_WAIT``). If the model is slow compared with the
environment, it is called for nearly all trees together. If the environment is slow, it is called for those that are
ready, and waiting adds at most half to the model's time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

MAX_WAIT = 0.5
"""How long trees that are ready wait for others, in seconds per second of the model's last call."""

Ask = Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]
"""A call of a model: answers one item each, in order."""


class Together:
    """The trees that grow at the same time, and their questions to the models.

    Args:
        asks: the calls that are made together, in the order in which a simulation makes them. They take turns.
        trees: how many trees grow.
        on_call: called before every call of a model, and when a tree has stopped growing.
    """

    def __init__(self, asks: Sequence[Ask], trees: int, on_call: Callable[[], None] = lambda: None) -> None:
        self.growing = trees
        self.seconds = 0.0
        """Wall time so far, of which each tree that was growing had an equal share."""
        self._waiting = {ask: list[tuple[int, Sequence[Any], asyncio.Future[Sequence[Any]]]]() for ask in asks}
        """For each call: the number of the tree, its items and where their answers go."""
        self._turns, self._on_call = list(asks), on_call
        self._ready = trees
        """How many growing trees do not wait for a model."""
        self._took = dict.fromkeys(asks, 0.0)
        """Seconds of the last call of each kind."""
        self._calling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._clock = time.perf_counter()

    async def ask(self, ask: Ask, tree: int, items: Sequence[Any]) -> Sequence[Any]:
        """The answers to ``items``, in order. Other trees' items may be answered in the same call."""
        if self.growing == 1 or ask not in self._waiting:  # a server answers many calls in the time of one
            self._on_call()
            return await ask(items)
        future: asyncio.Future[Sequence[Any]] = asyncio.get_running_loop().create_future()
        self._waiting[ask].append((tree, items, future))
        self._ready -= 1
        self._consider()
        return await future

    def leave(self) -> None:
        """One tree has stopped growing."""
        self.share_time()
        self.growing -= 1
        self._ready -= 1
        self._on_call()
        self._consider()

    def share_time(self) -> float:
        """``seconds`` up to now."""
        now = time.perf_counter()
        self.seconds += (now - self._clock) / max(self.growing, 1)
        self._clock = now
        return self.seconds

    async def close(self) -> None:
        """Give up what is pending, for example after an error."""
        if self._timer is not None:
            self._timer.cancel()
        if self._calling is not None:
            self._calling.cancel()
            await asyncio.gather(self._calling, return_exceptions=True)

    def _consider(self) -> None:
        """Call a model if all trees wait, or make sure that one is called in time."""
        if self._calling is not None or (self._ready > 0 and self._timer is not None):
            return
        if not any(self._waiting.values()):
            return
        if self._ready <= 0:
            self._start()
        else:
            self._timer = asyncio.get_running_loop().call_later(MAX_WAIT * sum(self._took.values()), self._start)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ask = next(each for each in self._turns if self._waiting[each])
        while self._turns[-1] is not ask:
            self._turns.append(self._turns.pop(0))
        waiting, self._waiting[ask] = self._waiting[ask], []
        waiting.sort(key=_number)
        self._calling = asyncio.get_running_loop().create_task(self._call(ask, waiting))

    async def _call(
        self, ask: Ask, waiting: Sequence[tuple[int, Sequence[Any], "asyncio.Future[Sequence[Any]]"]]
    ) -> None:
        self._on_call()
        started = time.perf_counter()
        try:
            answers = await ask([item for _, items, _ in waiting for item in items])
        except BaseException as error:
            for _, _, future in waiting:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        self._took[ask] = time.perf_counter() - started
        start = 0
        for _, items, future in waiting:
            stop = start + len(items)
            if not future.done():
                future.set_result(answers[start:stop])
            start = stop
        self._ready += len(waiting)
        self._calling = None
        self._consider()


def _number(waiting: tuple[int, Sequence[Any], object]) -> int:
    return waiting[0]

"""One call of a model for all trees that wait for it, and no waiting for the slow steps of a few.

Each tree grows in a task of its own. A tree that needs a model waits here until no other tree can go on without an
answer; then one call answers all that wait for the same model. Trees wait for one whose step is slow at most half as
long as the model took last (``MAX_WAIT``), so waiting adds at most half to the model's time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Any

MAX_WAIT = 0.5
"""How long trees that are ready wait for others, in seconds per second of the model's last call."""

Ask = Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]
"""A call of a model: answers one item each, in order."""


class _Batch:
    """The questions of trees that wait for the same call, and its answer to each."""

    def __init__(self) -> None:
        self.questions: list[tuple[int, Sequence[Any]]] = []  # the number of the tree and its items
        self.answers: asyncio.Future[dict[int, Sequence[Any]]] = asyncio.get_running_loop().create_future()


class Together:
    """The trees that grow at the same time, and their questions to the models. ``asks`` are the calls that are made
    together; they take turns. ``on_call`` is called before each, and when a tree has stopped growing."""

    def __init__(self, asks: Sequence[Ask], trees: int, on_call: Callable[[], None] = lambda: None) -> None:
        self.growing = trees
        self.seconds = 0.0
        """Wall time so far, of which each tree that was growing had an equal share."""
        self._waiting = {ask: _Batch() for ask in asks}
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
        batch = self._waiting[ask]
        place = len(batch.questions)
        batch.questions.append((tree, items))
        self._ready -= 1
        self._consider()
        return (await batch.answers)[place]

    def leave(self) -> None:
        self.share_time()
        self.growing -= 1
        self._ready -= 1
        self._on_call()
        self._consider()

    def share_time(self) -> float:
        now = time.perf_counter()
        self.seconds += (now - self._clock) / max(self.growing, 1)
        self._clock = now
        return self.seconds

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._calling is not None:
            self._calling.cancel()
            await asyncio.gather(self._calling, return_exceptions=True)

    def _consider(self) -> None:
        """Call a model if all trees wait, or make sure that one is called in time."""
        in_time = self._calling is not None or (self._ready > 0 and self._timer is not None)
        if in_time or not any(batch.questions for batch in self._waiting.values()):
            return
        if self._ready <= 0:
            self._start()
        else:
            self._timer = asyncio.get_running_loop().call_later(MAX_WAIT * sum(self._took.values()), self._start)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ask = next(each for each in self._turns if self._waiting[each].questions)
        while self._turns[-1] is not ask:
            self._turns.append(self._turns.pop(0))
        batch, self._waiting[ask] = self._waiting[ask], _Batch()
        self._calling = asyncio.get_running_loop().create_task(self._call(ask, batch))

    async def _call(self, ask: Ask, batch: _Batch) -> None:
        self._on_call()
        asked = sorted(enumerate(batch.questions), key=lambda each: each[1][0])
        started = time.perf_counter()
        try:
            answers = iter(await ask([item for _, (_, items) in asked for item in items]))
        except BaseException as error:
            if not batch.answers.done():
                batch.answers.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        self._took[ask] = time.perf_counter() - started
        if not batch.answers.done():
            batch.answers.set_result({place: list(islice(answers, len(items))) for place, (_, items) in asked})
        self._ready += len(asked)
        self._calling = None
        self._consider()

"""Handles slow answers that are pending while other trees continue.

A tree with a slow environment must not keep the others waiting. On the other hand, a model answers many trees at once
for little more than the cost of one. Before the model is called, the loop therefore waits for pending answers, but at
most half as long as the model took since the last time (``MAX_WAIT``). If the model is slow compared with the
environment, it is called for nearly all trees together, as if they ran in lockstep. If the environment is slow, the
model is called for the trees that are ready. Waiting adds at most that half to the model's time. A policy on a server
that batches requests by itself is called for each tree separately (``types.Concurrent``).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

from treeagent.search.requests import KINDS, Answer, Broker, Request, WaitingTree

MAX_WAIT = 0.5
"""How long to wait for pending answers, in seconds per second that the model took for its last answers."""
_LOOP_ITERATIONS = 3
"""Iterations of the event loop within which an answer arrives that was ready before a call of the model returned."""


class PendingRequests:
    """The requests of a broker that are answered one by one, with an asyncio task for each request.

    Args:
        single: the kinds that are answered this way, each with the function that answers it. All other kinds are
            answered for many trees together.
    """

    def __init__(
        self, broker: Broker, single: Sequence[tuple[type[Request], Callable[[Request], Awaitable[Answer]]]]
    ) -> None:
        self._broker, self._single = broker, single
        self.batched = [kind for kind in KINDS if all(kind is not each for each, _ in single)]
        """All kinds not in ``single``."""
        self._tasks = list[asyncio.Task[None]]()
        """May include some that are done."""
        self._pending = 0
        """Number of trees whose answers were not passed on yet."""
        self._answered = list[tuple[WaitingTree, list[Answer]]]()
        self._failure: BaseException | None = None
        self._event = asyncio.Event()
        self.model_seconds = 0.0
        """Time in model calls since the last ``process``. The caller adds to it."""

    async def process(self) -> None:
        """Start answering the trees' requests of the kinds in ``single``, and pass on the answers that have come.

        Returns when nothing is pending any more, or when trees have requests of the other kinds and have waited long
        enough.

        Raises:
            BaseException: the exception that an answer raised.
        """
        max_wait, self.model_seconds = MAX_WAIT * self.model_seconds, 0.0
        deadline: float | None = None
        while True:
            for kind, ask in self._single:
                waiting = self._broker.take(kind)
                requests = waiting[0].requests if len(waiting) == 1 else ()
                if len(requests) == 1 and not self._pending and not self._broker.has_requests(*KINDS):
                    # Nothing else is pending, and creating a task would take longer than a fast step.
                    self._broker.deliver(waiting, [await ask(requests[0])])
                    return
                self._start(waiting, ask)
            if not self._pending:
                return
            await asyncio.sleep(0)  # lets answers arrive that need no waiting
            if not self._answered:
                if deadline is None and self._broker.has_requests(*self.batched):
                    deadline = time.perf_counter() + max_wait
                await self._wait(deadline)
            if not self._answered:
                return
            self._deliver()
            if not self._pending:  # all answers have come, so the trees continue together
                self._tasks.clear()
                return
            if not self._broker.has_requests(*self.batched):
                self._broker.close_batch()  # otherwise the batch is closed after the answers of the other kinds

    def _start(self, waiting: Sequence[WaitingTree], ask: Callable[[Request], Awaitable[Answer]]) -> None:
        if len(self._tasks) > 2 * self._pending:
            self._tasks = [task for task in self._tasks if not task.done()]
        self._pending += len(waiting)
        for tree in waiting:
            answers = dict[int, Answer]()
            for index, request in enumerate(tree.requests):
                self._tasks.append(asyncio.create_task(self._await_answer(tree, answers, index, ask(request))))

    async def _await_answer(
        self, tree: WaitingTree, answers: dict[int, Answer], index: int, answer: Awaitable[Answer]
    ) -> None:
        """Wait for one answer and store it at index ``index``. The tree is answered when its last answer is
        stored."""
        try:
            answers[index] = await answer
        except BaseException as error:  # raised again in _wait, which would otherwise wait for ever
            self._failure = self._failure or error
            self._event.set()
            return
        if len(answers) == len(tree.requests):
            self._answered.append((tree, [answers[place] for place in range(len(answers))]))
            self._event.set()

    async def _wait(self, deadline: float | None) -> None:
        """Wait until a tree is answered, at most until ``deadline``.

        Raises:
            BaseException: the exception that an answer raised.
        """
        self._event.clear()
        if self._failure is None and not self._answered:
            timer = None
            if deadline is not None:
                seconds_left = max(deadline - time.perf_counter(), 0.0)
                timer = asyncio.get_running_loop().call_later(seconds_left, self._event.set)
            await self._event.wait()
            if timer is not None:
                timer.cancel()
            for _ in range(_LOOP_ITERATIONS):
                if not self._answered:
                    await asyncio.sleep(0)
        if self._failure is not None:
            raise self._failure

    def _deliver(self) -> None:
        answered, self._answered = self._answered, []
        self._pending -= len(answered)
        for tree, answers in answered:
            self._broker.deliver([tree], answers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel what is still pending, for example after an error."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

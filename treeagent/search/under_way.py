"""Handles slow answers that are pending while other trees continue.

A tree with a slow environment must not keep the others waiting. On the other hand, a model answers many trees at once
for little more than the cost of one. Before the model is called, the loop therefore waits for pending answers, but at
most half as long as the model took since the last time (``PATIENCE``). If the model is slow compared with the
environment, it is called for nearly all trees together, as if they ran in lockstep. If the environment is slow, the
model is called for the trees that are ready. Waiting adds at most that half to the model's time. A policy on a server
that batches requests by itself is called for each tree separately (``types.Concurrent``).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, cast

from treeagent.search.asking import KINDS, Answer, Broker, Question, Wanted

PATIENCE = 0.5
"""How long to wait for pending answers, in seconds per second that the model took for its last answers."""
_TURNS = 3
"""Iterations of the event loop within which an answer arrives that was ready before a call of the model returned."""


class UnderWay:
    """The questions of a broker that are answered one by one, with an asyncio task for each request.

    Args:
        apart: the kinds that are answered this way, each with the function that answers it. All other kinds are
            answered for many trees together.
    """

    def __init__(
        self, broker: Broker, apart: Sequence[tuple[type[Wanted], Callable[[Wanted], Awaitable[Answer]]]]
    ) -> None:
        self._broker, self._apart = broker, apart
        self.together = [kind for kind in KINDS if all(kind is not each for each, _ in apart)]
        """All kinds not in ``apart``."""
        self._tasks = list[asyncio.Task[None]]()
        """May include some that are done."""
        self._flying = 0
        """Number of questions whose answers were not passed on yet."""
        self._landed = list[tuple[Question, list[Answer]]]()
        self._failure: BaseException | None = None
        self._bell = asyncio.Event()
        self.model_seconds = 0.0
        """Time in model calls since the last ``go_on``. The caller adds to it."""

    async def go_on(self) -> None:
        """Start answering the trees' requests of the kinds in ``apart``, and pass on the answers that have come.

        Returns when nothing is pending any more, or when trees have requests of the other kinds and have waited long
        enough.

        Raises:
            BaseException: the exception that an answer raised.
        """
        patience, self.model_seconds = PATIENCE * self.model_seconds, 0.0
        deadline: float | None = None
        while True:
            for kind, ask in self._apart:
                questions = self._broker.take(kind)
                wanted = questions[0].wanted if len(questions) == 1 else ()
                if len(wanted) == 1 and not self._flying and not self._broker.waits(*KINDS):
                    # Nothing else is pending, and creating a task would take longer than a fast step.
                    self._broker.tell(questions, [await ask(wanted[0])])
                    return
                self._begin(questions, ask)
            if not self._flying:
                return
            await asyncio.sleep(0)  # lets answers arrive that need no waiting
            if not self._landed:
                if deadline is None and self._broker.waits(*self.together):
                    deadline = time.perf_counter() + patience
                await self._wait(deadline)
            if not self._landed:
                return
            self._tell()
            if not self._flying:  # all answers have come, so the trees continue together
                self._tasks.clear()
                return
            if not self._broker.waits(*self.together):
                self._broker.close_batch()  # otherwise the batch is closed after the answers of the other kinds

    def _begin(self, questions: Sequence[Question], ask: Callable[[Wanted], Awaitable[Answer]]) -> None:
        if len(self._tasks) > 2 * self._flying:
            self._tasks = [task for task in self._tasks if not task.done()]
        self._flying += len(questions)
        for question in questions:
            answers: list[Answer | None] = [None] * len(question.wanted)
            for place, wanted in enumerate(question.wanted):
                self._tasks.append(asyncio.create_task(self._fly(question, answers, place, ask(wanted))))

    async def _fly(
        self, question: Question, answers: list[Answer | None], place: int, answer: Awaitable[Answer]
    ) -> None:
        """Wait for one answer and store it at index ``place``. The question is answered when its last answer is
        stored."""
        try:
            answers[place] = await answer
        except BaseException as error:  # raised again in _wait, which would otherwise wait for ever
            self._failure = self._failure or error
            self._bell.set()
            return
        if None not in answers:
            self._landed.append((question, cast("list[Answer]", answers)))
            self._bell.set()

    async def _wait(self, deadline: float | None) -> None:
        """Wait until a question is answered, at most until ``deadline``.

        Raises:
            BaseException: the exception that an answer raised.
        """
        self._bell.clear()
        if self._failure is None and not self._landed:
            timer = None
            if deadline is not None:
                left = max(deadline - time.perf_counter(), 0.0)
                timer = asyncio.get_running_loop().call_later(left, self._bell.set)
            await self._bell.wait()
            if timer is not None:
                timer.cancel()
            for _ in range(_TURNS):
                if not self._landed:
                    await asyncio.sleep(0)
        if self._failure is not None:
            raise self._failure

    def _tell(self) -> None:
        landed, self._landed = self._landed, []
        self._flying -= len(landed)
        for question, answers in landed:
            self._broker.tell([question], answers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel what is still pending, for example after an error."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

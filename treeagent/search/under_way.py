"""Answers that are under way while other trees go on.

A tree whose environment takes long must not keep the others waiting, and a model answers many trees at once for little
more than one. So before the model is asked, slow answers are waited for, but at most half as long as the model took
since the last time (``PATIENCE``). Where the model is slow beside the environment, it is asked for nearly all trees
together, as if they went in step; where the environment is slow, it is asked for whichever have come. The waiting adds
at most that half to the model's time. A policy on a server that batches by itself is asked by each tree alone
(``types.Concurrent``).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, cast

from treeagent.search.asking import KINDS, Answer, Broker, Question, Wanted

PATIENCE = 0.5
"""Seconds that answers under way are waited for, for each second that the model took for its last answers."""
_TURNS = 3
"""Turns of the event loop in which an answer arrives that was there before a call of the model returned."""


class UnderWay:
    """The questions of a broker that are answered one by one, each thing wanted in a task of its own.

    Args:
        apart: the kinds that are answered so, and by what. All others are answered for many trees together.
    """

    def __init__(
        self, broker: Broker, apart: Sequence[tuple[type[Wanted], Callable[[Wanted], Awaitable[Answer]]]]
    ) -> None:
        self._broker, self._apart = broker, apart
        self.together = [kind for kind in KINDS if all(kind is not each for each, _ in apart)]
        """The other kinds."""
        self._tasks = list[asyncio.Task[None]]()
        """With some that are done."""
        self._flying = 0
        """Questions that are not told yet."""
        self._landed = list[tuple[Question, list[Answer]]]()
        self._failure: BaseException | None = None
        self._bell = asyncio.Event()
        self.model_seconds = 0.0
        """Of the calls of the model since the last ``go_on``, to be added from outside."""

    async def go_on(self) -> None:
        """Ask what trees want of the kinds apart, and tell what has come. Returns when nothing is under way any more,
        or when trees want something of the other kinds and have waited long enough.

        Raises:
            BaseException: one that an answer raised.
        """
        patience, self.model_seconds = PATIENCE * self.model_seconds, 0.0
        deadline: float | None = None
        while True:
            for kind, ask in self._apart:
                questions = self._broker.take(kind)
                wanted = questions[0].wanted if len(questions) == 1 else ()
                if len(wanted) == 1 and not self._flying and not self._broker.waits(*KINDS):
                    # Nothing else goes on, and a task takes longer than a fast step.
                    self._broker.tell(questions, [await ask(wanted[0])])
                    return
                self._begin(questions, ask)
            if not self._flying:
                return
            await asyncio.sleep(0)  # what needs no wait is there after it
            if not self._landed:
                if deadline is None and self._broker.waits(*self.together):
                    deadline = time.perf_counter() + patience
                await self._wait(deadline)
            if not self._landed:
                return
            self._tell()
            if not self._flying:  # all have come, and go on together
                self._tasks.clear()
                return
            if not self._broker.waits(*self.together):
                self._broker.close_batch()  # no tree asks for the other kinds, whose answers end batches elsewhere

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
        """Write an answer to its place among those to the question, which is answered with the last one."""
        try:
            answers[place] = await answer
        except BaseException as error:  # raised again where all is waited for, which nothing else would end
            self._failure = self._failure or error
            self._bell.set()
            return
        if None not in answers:
            self._landed.append((question, cast("list[Answer]", answers)))
            self._bell.set()

    async def _wait(self, deadline: float | None) -> None:
        """Wait until a question is answered, at most until ``deadline``."""
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
        """Give up what is still under way, as after an error."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

"""Calls in daemon threads: after Ctrl-C they do not keep the process from ending."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Answer = TypeVar("Answer")
Item = TypeVar("Item")


async def in_thread(call: Callable[[], Answer]) -> Answer:
    """Call ``call`` in a thread of its own, and return or raise what it does."""
    return await asyncio.wrap_future(_begun(call))


def side_by_side(call: Callable[[Item], Answer], items: Sequence[Item], most: int) -> list[Answer]:
    """What ``call`` returns for each item, in their order, made in at most this many threads. Once it has raised, no
    further call is begun."""
    answers, waiting = dict[int, Answer](), enumerate(items)

    def work() -> None:
        try:
            for place, item in waiting:
                answers[place] = call(item)
        except BaseException:
            deque(waiting, maxlen=0)
            raise

    for thread in [_begun(work) for _ in range(min(most, len(items)))]:
        thread.result()
    return [answers[place] for place in range(len(items))]


def _begun(call: Callable[[], Answer]) -> Future[Answer]:
    """What ``call`` returns or raises in a thread of its own. The thread is a daemon: after Ctrl-C it does not keep the
    process from ending, unlike those of ``concurrent.futures``."""
    future = Future[Answer]()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # raised again where it is waited for
            future.set_exception(error)

    future.set_running_or_notify_cancel()  # from now on it cannot be cancelled, only left alone
    Thread(target=run, name="call", daemon=True).start()
    return future

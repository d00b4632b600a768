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
    """Run ``call`` in a thread of its own, without blocking the event loop."""
    return await asyncio.wrap_future(_start(call))


def map_in_threads(call: Callable[[Item], Answer], items: Sequence[Item], most: int) -> list[Answer]:
    """Run ``call`` for each item, in at most ``most`` threads; after a call has raised, no further one starts."""
    answers, waiting = dict[int, Answer](), enumerate(items)

    def work() -> None:
        try:
            for index, item in waiting:
                answers[index] = call(item)
        except BaseException:
            deque(waiting, maxlen=0)
            raise

    for thread in [_start(work) for _ in range(min(most, len(items)))]:
        thread.result()
    return [answers[index] for index in range(len(items))]


def _start(call: Callable[[], Answer]) -> Future[Answer]:
    """Start ``call`` in a daemon thread, which unlike those of ``concurrent.futures`` keeps no process alive."""
    future = Future[Answer]()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # raised again by ``future.result()``
            future.set_exception(error)

    future.set_running_or_notify_cancel()  # from now on the future cannot be cancelled
    Thread(target=run, name="call", daemon=True).start()
    return future

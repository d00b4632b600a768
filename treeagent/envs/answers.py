"""What an environment returns, checked where it becomes ours: after that, every value can be stored.

A stranger's environment may return anything: half a surrogate pair, an integer of a hundred digits, an object. Here
such a value becomes an exception, which is the error of the episode that met it, as a crash is.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Final

import orjson

from treeagent.envs.base import EnvBroken, StepResult
from treeagent.types import Task

ENDING: Final = (SystemExit, GeneratorExit, asyncio.CancelledError)
"""Exceptions by which an environment would end the whole run, or the task of the event loop. ``KeyboardInterrupt`` is
left out, since nothing tells one that the environment raised from Ctrl-C."""


@contextmanager
def contained() -> Iterator[None]:
    """Calls of an environment, none of them awaited: one that would end the run raises ``EnvBroken`` instead."""
    try:
        yield
    except ENDING as error:
        raise broken_by(error) from error


def broken_by(error: BaseException) -> EnvBroken:
    """The error of an episode in which the environment raised one of ``ENDING``."""
    return EnvBroken(f"the environment raised {error!r}: raise an Exception to end the episode alone")


def is_unicode(text: str) -> bool:
    """Whether the text is without halves of surrogate pairs, which no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_task(task: Task) -> Task:
    """The task, or ``EnvBroken`` where a stored tree could not hold it."""
    try:
        orjson.dumps(task)
    except Exception as error:  # whatever a stranger's object raises
        raise EnvBroken(
            f"task {task.id!r:.80} cannot be stored ({error}): give it valid Unicode text and plain JSON values"
        ) from None
    return task


def checked_reset(answer: object) -> tuple[str, dict[str, object]]:
    """What ``reset`` returned, or ``EnvBroken`` where that is no observation and info."""
    match answer:
        case (str() as observation, dict() as info) if is_unicode(observation):
            return observation, info
    raise EnvBroken(f"reset returned {answer!r:.200}: it must return (observation as valid Unicode text, info dict)")


def checked_step(answer: object) -> StepResult:
    """What ``step`` returned, the reward as a float, or ``EnvBroken`` where that is no ``StepResult``."""
    match answer:
        case (
            str() as observation,
            Real() as reward,
            bool() as terminated,
            bool() as truncated,
            dict() as info,
        ) if is_unicode(observation) and math.isfinite(reward):
            return observation, float(reward), terminated, truncated, info
    raise EnvBroken(
        f"step returned {answer!r:.200}: it must return "
        "(observation as valid Unicode text, finite reward number, terminated bool, truncated bool, info dict)"
    )


def checked_verdict(answer: object) -> float | None:
    """What ``verify`` returned, or ``EnvBroken`` where that is neither a finite number nor None."""
    if answer is None or (isinstance(answer, Real) and math.isfinite(answer)):
        return None if answer is None else float(answer)
    raise EnvBroken(f"verify returned {answer!r:.200}: it must return a finite number or None")


def checked_key(answer: object) -> str | None:
    """What ``state_key`` returned, as text, or ``EnvBroken`` where that cannot be stored."""
    key = None if answer is None else str(answer)
    if key is None or is_unicode(key):
        return key
    raise EnvBroken(f"state_key returned {answer!r:.200}: it must return valid Unicode text or None")


def checked_legal(answer: object) -> tuple[str, ...] | None:
    """What ``legal_actions`` returned, or ``EnvBroken`` where that is neither a list of texts nor None."""
    if answer is None:
        return None
    if isinstance(answer, list | tuple) and all(isinstance(each, str) and is_unicode(each) for each in answer):
        return tuple(answer)
    raise EnvBroken(f"legal_actions returned {answer!r:.200}: it must return a list of valid Unicode texts or None")


def checked_components(info: Mapping[str, object], known: Sequence[str]) -> dict[str, float]:
    """The components that ``info`` of a step holds, or ``EnvBroken`` where one has no finite number or no name that the
    environment declares."""
    given = info.get("components", {})
    if not isinstance(given, Mapping):
        raise EnvBroken(f"info['components'] is {given!r:.200}: give numbers by their names")
    for name, value in given.items():
        if name not in known:
            raise EnvBroken(f"info['components'] names {name!r}: declare it in Env.components, which are {known}")
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise EnvBroken(f"component {name!r} of a step is {value!r:.80}: give a finite number, or leave it out")
    return {name: float(value) for name, value in given.items()}


def checked_turn(answer: object) -> tuple[str, str]:
    """What a demonstrator's ``act`` returned, or ``EnvBroken`` where that is no thought and call."""
    match answer:
        case (str() as thought, str() as call) if is_unicode(thought + call):
            return thought, call
    raise EnvBroken(f"act returned {answer!r:.200}: it must return (thought, call), both valid Unicode text")

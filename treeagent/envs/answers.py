"""Checks of the values that an environment returns. A value that passes them can be stored; for any other, they raise
an exception, which becomes the error of that episode, as a crash does."""

import asyncio
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Final

import orjson

from treeagent.envs.base import EnvBroken, StepResult, ToolSpec
from treeagent.types import Split, Task, UserError

ENDING: Final = (SystemExit, GeneratorExit, asyncio.CancelledError)
"""Exceptions with which an environment would end the whole run. Its ``KeyboardInterrupt`` is taken for Ctrl-C."""
_IMAGE = re.compile(r"data:image/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/]+={0,2}")


@contextmanager
def contained() -> Iterator[None]:
    """Context for calls of an environment: an exception of ``ENDING`` becomes ``EnvBroken``, which ends the episode."""
    try:
        yield
    except ENDING as error:
        raise EnvBroken(f"the environment raised {error!r}: raise an Exception to end the episode alone") from error


def is_unicode(text: str) -> bool:
    """Whether the text has no unpaired surrogates, which cannot be encoded in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_tasks(answer: object, split: Split) -> Sequence[Task]:
    if not isinstance(answer, Sequence):
        raise UserError(f"tasks({split!r}) returns a {type(answer).__name__}: let it return a list")
    return answer


def checked_tools(answer: object) -> Sequence[ToolSpec]:
    if not isinstance(answer, Sequence) or not all(isinstance(each, ToolSpec) for each in answer):
        raise UserError(f"tools() returns {answer!r:.80}: let it return a list of treeagent.envs.ToolSpec")
    return answer


def checked_task(task: Task) -> Task:
    """Return the task if it can be stored in a tree."""
    try:
        orjson.dumps(task)
    except Exception as error:  # a user's object may raise anything
        raise EnvBroken(
            f"task {task.id!r:.80} cannot be stored ({error}): give it valid Unicode text and plain JSON values"
        ) from None
    return task


def checked_reset(answer: object) -> tuple[str, dict[str, object]]:
    match answer:
        case (str() as observation, dict() as info) if is_unicode(observation):
            return observation, info
    raise _broken("reset", answer, "(observation as valid Unicode text, info dict)")


def checked_step(answer: object) -> StepResult:
    """Return the result of ``step``, its reward as a float."""
    match answer:
        case (str() as said, Real() as reward, bool() as terminated, bool() as truncated, dict() as info) if is_unicode(
            said
        ) and math.isfinite(reward):
            return said, float(reward), terminated, truncated, info
    form = "(observation as valid Unicode text, finite reward number, terminated bool, truncated bool, info dict)"
    raise _broken("step", answer, form)


def checked_images(info: Mapping[str, object]) -> tuple[str, ...]:
    """Return the images of an observation, ``info["images"]``."""
    images = info.get("images", ())
    if isinstance(images, list | tuple) and all(isinstance(each, str) and _IMAGE.fullmatch(each) for each in images):
        return tuple(images)
    raise EnvBroken(f"info['images'] is {images!r:.200}: it must list images as data URLs (data:image/png;base64,...)")


def checked_verdict(answer: object) -> float | None:
    if answer is None:
        return None
    if isinstance(answer, Real) and math.isfinite(answer):
        return float(answer)
    raise _broken("verify", answer, "a finite number or None")


def checked_key(answer: object) -> str | None:
    key = None if answer is None else str(answer)
    if key is None or is_unicode(key):
        return key
    raise _broken("state_key", answer, "valid Unicode text or None")


def checked_legal(answer: object) -> tuple[str, ...] | None:
    if answer is None:
        return None
    if isinstance(answer, list | tuple) and all(isinstance(each, str) and is_unicode(each) for each in answer):
        return tuple(answer)
    raise _broken("legal_actions", answer, "a list of valid Unicode texts or None")


def checked_turn(answer: object) -> tuple[str, str]:
    match answer:
        case (str() as thought, str() as call) if is_unicode(thought + call):
            return thought, call
    raise _broken("act", answer, "(thought, call), both valid Unicode text")


def _broken(method: str, answer: object, form: str) -> EnvBroken:
    return EnvBroken(f"{method} returned {answer!r:.200}: it must return {form}")

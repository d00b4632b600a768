"""Calls that wait until a person says yes. Requests and answers are files in a folder, so that any process may ask and
any terminal on the same files may answer.

``ID.ask.json`` holds a request, ``ID.answer.json`` what was said. An answer is written once and never changed: of a
person and a timeout that answer together, one counts for everybody. Equal requests have equal ids, so a resumed run and
a replayed path get the answers that were given.
"""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

import orjson
import pydantic.dataclasses
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from treeagent.store import StoreError, regular, write_atomic
from treeagent.types import REACHES_OUT, storable

_POLL = 0.1
"""Seconds between looks for an answer."""
_ASK, _ANSWER = ".ask.json", ".answer.json"


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Approve:
    """Which calls wait until a person approves them, by ``treeagent approve FOLDER``."""

    calls: tuple[str, ...] = ()
    """Regular expressions, matched as those of ``shield.deny``: a call that one of them fits is held until a person
    says yes."""
    folder: Annotated[str, REACHES_OUT] = ""
    """Folder of the requests and answers. It keeps its answers: a new folder asks anew."""
    seconds: Annotated[float, Field(gt=0)] = 300.0
    """Seconds after which no answer means no."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a person is asked."""

    task_id: str
    prompt: str
    place: str
    """The environment's state key, or the calls before this one where it has none."""
    observation: str
    """What the agent read last."""
    call: str

    @property
    def id(self) -> str:
        return blake2b(orjson.dumps([self.task_id, self.place, self.call]), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said to a request."""

    yes: bool
    who: str
    """Empty where nobody answered in time."""
    when: str = ""
    note: str = ""


_ANSWERS, _REQUESTS = TypeAdapter(Answer), TypeAdapter(Request)


def ask(folder: Path, request: Request, seconds: float) -> str | None:
    """Wait for an answer, at most this long. Returns why the call must not be made; None where it may.

    Raises:
        StoreError: the folder cannot be used, or an answer is damaged.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot use {folder} for approvals: {error.strerror}: set environment.approve.folder"
        ) from error
    request = Request(*(storable(text) for text in asdict(request).values()))
    asked = folder / f"{request.id}{_ASK}"
    if _answer(folder, request.id) is None and not asked.exists():
        write_atomic(asked, orjson.dumps(asdict(request)))
    ends = time.monotonic() + seconds
    while (found := _answer(folder, request.id)) is None:
        if time.monotonic() >= ends:
            answer(folder, request.id, Answer(False, "", note=f"nobody answered in {seconds:g} s"))
        else:
            time.sleep(_POLL)
    if found.yes:
        return None
    said = f"{found.who} said no" if found.who else "it was not approved"
    return f"{said}: {found.note}" if found.note else said


def waiting(folder: Path) -> Iterator[Request]:
    """The requests without an answer, oldest first. Requests of others than this program are passed over."""
    for path in sorted(folder.glob(f"*{_ASK}"), key=lambda path: (path.stat().st_mtime_ns, path.name)):
        try:
            request = _REQUESTS.validate_json(regular(path).read_bytes())
        except (ValidationError, StoreError, FileNotFoundError):
            continue
        if path.name == f"{request.id}{_ASK}" and _answer(folder, request.id) is None:
            yield request


def answer(folder: Path, request_id: str, said: Answer) -> bool:
    """Answer a request. False where it was answered before: that answer stays."""
    path = folder / f"{request_id}{_ANSWER}"
    whole = folder / f".{request_id}.{threading.get_native_id()}.tmp"
    when = said.when or datetime.now(UTC).isoformat(timespec="seconds")
    write_atomic(whole, orjson.dumps(asdict(said) | {"when": when}))
    try:
        os.link(whole, path)  # unlike a rename it fails where there is an answer
    except FileExistsError:
        return False
    finally:
        whole.unlink()
    return True


def _answer(folder: Path, request_id: str) -> Answer | None:
    path = folder / f"{request_id}{_ANSWER}"
    try:
        return _ANSWERS.validate_json(regular(path).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        raise StoreError(f"{path} holds no answer: delete it") from None


def history_key(calls: Sequence[str]) -> str:
    """Names the place behind these calls."""
    return blake2b(orjson.dumps(list(map(storable, calls))), digest_size=16).hexdigest()

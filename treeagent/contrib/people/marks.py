"""Reviewers' marks on what an agent did: the append-only file RUN/marks.jsonl, and how several marks are combined. A
mark names the judged conversation by a hash, so it applies in every tree with this conversation."""

import fcntl
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Literal, Self
from uuid import uuid4

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from treeagent.store import StoreError, appendable, regular, sync
from treeagent.types import Message

FILE = "marks.jsonl"
"""Name of the file in a run's folder."""
Verdict = Literal["better", "tie", "skip", "veto", "edit", "unsafe", "solved", "failed", "withdraw"]
_REFUSALS = ("veto", "edit", "unsafe")


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="ignore"))
class Mark:
    """A reviewer's judgement of one item: of two actions at a state, of one action there, or of a whole episode."""

    id: Annotated[str, Field(min_length=1)]
    """Unique. A mark that is sent twice is stored once."""
    when: str
    """Time in UTC, ISO 8601."""
    who: Annotated[str, Field(min_length=1)]
    """Name of the reviewer."""
    verdict: Verdict
    """"better", "tie" and "skip" compare two actions; "veto", "edit" and "unsafe" say that an action must not be
    learned; "solved", "failed" and "skip" judge an episode; "withdraw" takes back the mark ``withdraws``."""
    task_id: str = ""
    state: str = ""
    """``state_hash`` of the conversation before the actions; for an episode, of the whole conversation."""
    shown: tuple[str, ...] = ()
    """Texts of the actions in the order in which they were shown, left first; for an episode, all its actions."""
    calls: tuple[str, ...] = ()
    """The calls in ``shown``: a tool call as ``tool {"argument": value}``, any other call as the agent wrote it."""
    choice: int | None = None
    """Index in ``shown`` of the better action, or of the one that is vetoed, edited or unsafe. None means all of
    them."""
    text: str = ""
    """The whole turn that the reviewer wrote to replace the action ("edit")."""
    note: str = ""
    withdraws: str = ""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        chooses = self.choice is not None and 0 <= self.choice < len(self.shown)
        needed = {"withdraw": bool(self.withdraws), "better": chooses and len(self.shown) == 2}
        needed["edit"] = chooses and bool(self.text.strip())
        judges = bool(self.state and self.shown) and (chooses or self.choice is None)
        if not needed.get(self.verdict, True) or not (judges or self.verdict == "withdraw"):
            raise ValueError(f"a mark with the verdict {self.verdict!r} needs more than this")
        return self

    @property
    def item(self) -> tuple[str, frozenset[str]]:
        """What was judged, regardless of the order in which it was shown."""
        return self.state, frozenset(self.shown)

    def refuses(self, text: str) -> bool:
        """Whether the mark says that this action must not be learned."""
        if self.verdict not in _REFUSALS:
            return False
        return text in self.shown if self.choice is None else self.shown[self.choice] == text


_MARK = TypeAdapter(Mark)


def new_mark(who: str, verdict: Verdict, **fields: object) -> Mark:
    """A mark with the current time. Without an ``id`` it gets a new one."""
    when = datetime.now(UTC).isoformat(timespec="milliseconds")
    try:
        return _MARK.validate_python({"id": uuid4().hex, "when": when, "who": who, "verdict": verdict} | fields)
    except ValidationError as error:
        raise ValueError(_reason(error)) from None


def state_hash(task_id: str, messages: Sequence[Message]) -> str:
    """A hash of 32 hex digits that identifies a conversation of a task. It covers roles and texts, not tokens."""
    conversation = [[message.role, message.content] for message in messages]
    return blake2b(orjson.dumps([task_id, conversation]), digest_size=16).hexdigest()


def append_mark(path: Path, mark: Mark) -> bool:
    """Append a mark to a file and flush it to disk. Several processes may append to one file. Returns False, and adds
    nothing, if the file already holds a mark with this id."""
    line = orjson.dumps(asdict(mark), option=orjson.OPT_APPEND_NEWLINE)
    try:
        with appendable(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # the kernel releases it when the file is closed
            file.seek(0)
            content = file.read()
            complete = content[: content.rfind(b"\n") + 1]
            if any(known.id == mark.id for known in _parse(path, complete)):
                return False
            # Cut off a part of a line that a crash left. Its reviewer got no confirmation that the mark was stored.
            os.ftruncate(file.fileno(), len(complete))
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if not complete:
            sync(path.parent)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}: check its permissions and the free space") from error
    return True


def read_marks(path: Path) -> list[Mark]:
    """All marks in a file, withdrawals included, in order. Empty if the file does not exist."""
    if not os.path.lexists(path):
        return []
    content = regular(path).read_bytes()
    return _parse(path, content[: content.rfind(b"\n") + 1])  # after it another process is writing


def _parse(path: Path, content: bytes) -> list[Mark]:
    marks = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            marks.append(_MARK.validate_json(line))
        except ValidationError as error:
            raise StoreError(f"{path}, line {number} is no mark ({_reason(error)}): delete this line") from None
    return marks


def _reason(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": Value error, ")


def effective_marks(marks: Iterable[Mark]) -> list[Mark]:
    """The marks that count, oldest first. A mark does not count if it was withdrawn, or if a later mark by its reviewer
    on the same item replaces it. A "veto", "edit" or "unsafe" is replaced only by the same verdict on the same action;
    all other verdicts replace each other. If the later mark is withdrawn, the earlier one counts again."""
    all_marks = list(marks)
    withdrawn = {mark.withdraws for mark in all_marks if mark.verdict == "withdraw"}
    latest: dict[object, Mark] = {}
    for mark in all_marks:
        if mark.verdict == "withdraw" or mark.id in withdrawn:
            continue
        about = mark.choice if mark.choice is None else mark.shown[mark.choice]
        kind: object = (mark.verdict, about) if mark.verdict in _REFUSALS else "judgement"
        key = (mark.who, mark.item, kind)
        latest.pop(key, None)
        latest[key] = mark
    return list(latest.values())


def deciding(marks: Iterable[Mark]) -> dict[str, list[Mark]]:
    """The marks that count, by state."""
    states: dict[str, list[Mark]] = {}
    for mark in effective_marks(marks):
        states.setdefault(mark.state, []).append(mark)
    return states


def preference(marks: Iterable[Mark], first: str, second: str) -> int | None:
    """Which of two actions at one state the majority of the ``deciding`` marks prefers: 1 for ``first``, -1 for
    ``second``, 0 for a tie; None if no mark compares the two."""
    votes = [mark for mark in marks if mark.verdict in ("better", "tie") and set(mark.shown) == {first, second}]
    if not votes:
        return None
    total = sum(0 if mark.choice is None else 1 if mark.shown[mark.choice] == first else -1 for mark in votes)
    return (total > 0) - (total < 0)


def label(marks: Iterable[Mark]) -> bool | None:
    """Whether an episode succeeded, by the majority of the ``deciding`` marks of its end. None if there are no such
    marks, or equally many on each side."""
    total = sum({"solved": 1, "failed": -1}.get(mark.verdict, 0) for mark in marks)
    return total > 0 if total else None


def unsafe_calls(marks: Iterable[Mark]) -> tuple[str, ...]:
    """The calls that standing marks call unsafe, as in ``Mark.calls``, sorted."""
    unsafe = [mark for mark in effective_marks(marks) if mark.verdict == "unsafe"]
    calls = {call for mark in unsafe for at, call in enumerate(mark.calls) if mark.choice in (None, at)}
    return tuple(sorted(calls - {""}))

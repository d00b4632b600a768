"""Reasoning written by a teacher, a model that sees the environment's answer and explains it (R* of DreamGym's equation
5). Each batch is stored on disk before the next one is requested, so no line is paid for twice."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from treeagent.generators.base import Failure
from treeagent.types import Message, UserError, after_thought
from treeagent.world_model.experience import Writer
from treeagent.world_model.transition import Experience
from treeagent.world_model.wording import Wording, answer_of

INSTRUCTIONS = """\
You are shown one step of an agent in an environment: what happened so far, the task, the agent's action, and what the \
environment answered. Write one line of reasoning that leads from what came before to this answer: what the action \
names or asks for there, what it changes, and, where the task ends, which of its conditions are met and which are not. \
Who reads your line and has not seen the answer must be able to write it. Do not mention that you have seen it. Write \
that line and nothing else."""
_BATCH = 256
"""Steps that are requested together and stored in one transaction."""
_NOT_ASKED = Failure("it had no line when the training began")
_SCHEMA = "CREATE TABLE IF NOT EXISTS reason (teacher TEXT, digest TEXT, line TEXT, PRIMARY KEY (teacher, digest))"


@dataclass(slots=True)
class Explanations:
    """A teacher's reasoning about some steps."""

    reasons: dict[str, str] = field(default_factory=dict[str, str])
    """Lines of reasoning, by the digest of the step."""
    unexplained: int = 0
    """Number of steps without a line."""
    error: str = ""
    """Why the first of these steps has no line."""


def explain(
    experiences: Sequence[Experience],
    writer: Writer,
    wording: Wording,
    path: Path,
    teacher: str,
    on_done: Callable[[int], None] | None = None,
    *,
    asks: bool = True,
) -> Explanations:
    """Request a line of reasoning for every step, except for openings of tasks.

    Args:
        wording: determines how much of an episode the world model sees; the teacher sees the same.
        path: the database of lines, created if it does not exist. A step that it contains is not requested again.
        teacher: name of the teacher, which is stored with its lines.
        on_done: called with the number of steps finished since the last call.
        asks: whether to request lines at all; otherwise only those in the database are returned.

    Raises:
        UserError: the database is damaged or cannot be written.
    """
    steps, explanations = [one for one in experiences if not one.opens], Explanations()
    shown = replace(wording, instructions=INSTRUCTIONS)
    try:
        with closing(sqlite3.connect(path, timeout=60)) as database:
            database.execute(_SCHEMA)
            known = dict(database.execute("SELECT digest, line FROM reason WHERE teacher = ?", (teacher,)).fetchall())
            for start in range(0, len(steps), _BATCH):
                batch = {one.digest(): one for one in steps[start : start + _BATCH]}
                unknown = {digest: one for digest, one in batch.items() if digest not in known}
                texts: Sequence[str | Failure] = [_NOT_ASKED] * len(unknown)
                if asks:
                    texts = asyncio.run(writer.write([question(shown, one) for one in unknown.values()]))
                lines: dict[str, str] = {}
                for digest, text in zip(unknown, texts, strict=True):
                    if not isinstance(text, Failure) and (line := _line(text)):
                        lines[digest] = line
                        continue
                    reason = text.reason if isinstance(text, Failure) else f"the answer {text[:80]!r} has no line"
                    explanations.unexplained += 1
                    explanations.error = explanations.error or reason
                explanations.reasons |= lines | {digest: known[digest] for digest in batch if digest in known}
                with database:
                    database.executemany(
                        "INSERT OR REPLACE INTO reason VALUES (?, ?, ?)",
                        [(teacher, digest, line) for digest, line in lines.items()],
                    )
                if on_done:
                    on_done(len(steps[start : start + _BATCH]))
    except sqlite3.Error as error:
        raise UserError(
            f"the reasons in {path} cannot be used ({error}): free some space, or remove the file to ask for all anew"
        ) from error
    return explanations


def question(wording: Wording, one: Experience) -> tuple[Message, ...]:
    """Return the world model's prompt for a step, followed by the environment's answer."""
    *before, request = wording.prompt(one.history, one.action)
    lines = f"{request.content}\n\nThe environment answered.\n{wording.write(answer_of(one))}"
    return (*before, Message("user", lines))


def _line(text: str) -> str:
    """Return a teacher's text as one line, without its thinking; empty if it was cut off while thinking."""
    return " ".join(after_thought(text).split()).removeprefix("Why:").strip()

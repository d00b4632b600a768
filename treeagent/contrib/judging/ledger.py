"""The ledger of a judge: a cache of every paid reply, in one SQLite file that threads and processes share.

A call is entered before it is made, so that a limit on calls holds across all workers, and its reply is stored when it
arrives. After a kill, no reply is paid for twice; a call that was pending then counts as made.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from treeagent.types import Message, UserError

FILE = "judge.sqlite"
"""Name of the file in a run's folder."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS call (
    id INTEGER PRIMARY KEY, stage TEXT NOT NULL, key TEXT NOT NULL, reply TEXT,
    prompt_tokens INTEGER NOT NULL DEFAULT 0,
    generated_tokens INTEGER NOT NULL DEFAULT 0, price REAL NOT NULL DEFAULT 0, seconds REAL NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS reply_of ON call (key) WHERE reply IS NOT NULL;
CREATE TABLE IF NOT EXISTS event (
    stage TEXT NOT NULL, kind TEXT NOT NULL, reason TEXT NOT NULL, number INTEGER NOT NULL,
    PRIMARY KEY (stage, kind, reason));
"""


@dataclass(frozen=True, slots=True)
class Reply:
    """A judge's reply, and its cost."""

    text: str
    prompt_tokens: int = 0
    generated_tokens: int = 0
    price: float = 0.0


def key_of(model: str, messages: Sequence[Message], seed: int, *sampling: float) -> str:
    """The hash under which a reply is stored. It covers the model, the text with its rubric, the seed and the sampling
    settings."""
    statement = [model, seed, list(sampling), [[message.role, message.content] for message in messages]]
    return hashlib.sha256(json.dumps(statement).encode()).hexdigest()


class Ledger:
    """The ledger at ``path``, which is created if it does not exist.

    Args:
        stage: the name under which calls and events are counted.

    Raises:
        UserError: the file is damaged or cannot be written; every method raises it.
    """

    def __init__(self, path: Path, stage: str) -> None:
        self.path, self.stage = path, stage
        with self._connection() as connection:
            connection.executescript(_SCHEMA)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction. No connection is kept, because threads and workers must not share one."""
        try:
            with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as connection:
                yield connection
        except sqlite3.Error as error:
            raise UserError(
                f"the judge's ledger {self.path} cannot be used ({error}): free some space, or remove the file to ask "
                "the judge anew"
            ) from error

    def stored_replies(self, keys: Sequence[str]) -> dict[str, str]:
        """The stored replies, by those of the ``keys`` that have one."""
        with self._connection() as connection:
            placeholders = ",".join("?" * len(keys))
            return dict(
                connection.execute(
                    f"SELECT key, reply FROM call WHERE reply IS NOT NULL AND key IN ({placeholders})", keys
                )
            )

    def begin(self, keys: Sequence[str], most_calls: int | None = None, most_tokens: int | None = None) -> list[int]:
        """Enter calls that are about to be made: the first ones of ``keys``, as many as the limits on the file's calls
        and tokens allow. Returns their numbers."""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            calls, tokens = connection.execute(
                "SELECT count(*), total(prompt_tokens + generated_tokens) FROM call WHERE stage != ''"
            ).fetchone()
            allowed = len(keys) if most_calls is None else max(most_calls - calls, 0)
            if most_tokens is not None and tokens >= most_tokens:
                allowed = 0
            statement = "INSERT INTO call (stage, key) VALUES (?, ?)"
            row_ids = [connection.execute(statement, (self.stage, key)).lastrowid for key in keys[:allowed]]
            connection.execute("COMMIT")
        return [number for number in row_ids if number is not None]

    def finish(self, replies: Mapping[int, Reply], seconds: float) -> None:
        """Store the replies to calls, by the numbers of the calls. Each took ``seconds``."""
        rows = [
            (each.text, each.prompt_tokens, each.generated_tokens, each.price, seconds, number)
            for number, each in replies.items()
        ]
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "UPDATE call SET reply = ?, prompt_tokens = ?, generated_tokens = ?, price = ?, seconds = ? "
                "WHERE id = ?",
                rows,
            )
            connection.execute("COMMIT")

    def withdraw(self, row_ids: Sequence[int]) -> None:
        """Remove calls that were not made after all, by the numbers of the calls."""
        if not row_ids:
            return
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("DELETE FROM call WHERE id = ?", [(number,) for number in row_ids])
            connection.execute("COMMIT")

    def count_events(self, events: Mapping[tuple[str, str], int]) -> None:
        """Add to the counts of events, by their kind and reason."""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT INTO event VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET number = number + excluded.number",
                [(self.stage, kind, reason, number) for (kind, reason), number in events.items()],
            )
            connection.execute("COMMIT")

    def figures(self) -> dict[str, float]:
        """The costs of the stage and the counts of its events; names begin with ``judge/``."""
        with self._connection() as connection:
            calls, prompt, generated, price, seconds = connection.execute(
                "SELECT count(*), total(prompt_tokens), total(generated_tokens), total(price), total(seconds) "
                "FROM call WHERE stage = ?",
                (self.stage,),
            ).fetchone()
            events = dict(
                connection.execute(
                    "SELECT kind, sum(number) FROM event WHERE stage = ? GROUP BY kind ORDER BY kind", (self.stage,)
                ).fetchall()
            )
        statement = {"calls": calls, "prompt_tokens": prompt, "generated_tokens": generated, "price": price}
        return {f"judge/{name}": float(value) for name, value in (statement | {"seconds": seconds} | events).items()}

    def reasons(self) -> list[tuple[str, int]]:
        """The reasons why ends of the stage have no verdict, and how often each occurred, the most frequent first."""
        with self._connection() as connection:
            rows = connection.execute(
                "SELECT reason, sum(number) FROM event WHERE stage = ? AND reason != '' AND kind = 'no_verdict' "
                "GROUP BY reason ORDER BY 2 DESC, 1",
                (self.stage,),
            ).fetchall()
        return [(str(reason), int(number)) for reason, number in rows]

    def copy_replies(self, path: Path) -> None:
        """Copy the replies to a new file, in which they do not count as calls."""
        part = path.with_name(f"{path.name}.part")
        part.unlink(missing_ok=True)
        with self._connection() as connection, closing(sqlite3.connect(part)) as copy:
            connection.backup(copy)
            copy.execute("DELETE FROM event")
            copy.execute("UPDATE call SET stage = ''")
            copy.commit()
        part.replace(path)

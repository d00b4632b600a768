"""The replies of a judge in one SQLite file of the run, which threads and processes share: none is paid for twice."""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from treeagent.types import Message, UserError

FILE = "judge.sqlite"
"""Name of the file in a run's folder."""
_TABLE = "CREATE TABLE IF NOT EXISTS reply (key TEXT PRIMARY KEY, text TEXT NOT NULL)"


def key_of(model: str, messages: Sequence[Message], seed: int, *sampling: float) -> str:
    """The hash under which a reply is stored: of the model, the text with its questions, the seed and the sampling
    settings."""
    statement = [model, seed, list(sampling), [[message.role, message.content] for message in messages]]
    return hashlib.sha256(json.dumps(statement).encode()).hexdigest()


class Replies:
    """The file at ``path``, which is created if it does not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._connection() as connection:
            connection.execute(_TABLE)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction. No connection is kept, because workers must not share one."""
        try:
            with closing(sqlite3.connect(self.path, timeout=60)) as connection, connection:
                yield connection
        except sqlite3.Error as error:
            raise UserError(
                f"the judge's replies in {self.path} cannot be used ({error}): free some space, or remove the file to "
                "ask the judge anew"
            ) from error

    def known(self, keys: Sequence[str]) -> dict[str, str]:
        """The stored replies, by those of the ``keys`` that have one."""
        with self._connection() as connection:
            placeholders = ",".join("?" * len(keys))
            return dict(connection.execute(f"SELECT key, text FROM reply WHERE key IN ({placeholders})", keys))

    def add(self, key: str, text: str) -> None:
        with self._connection() as connection:
            connection.execute("INSERT OR REPLACE INTO reply VALUES (?, ?)", (key, text))

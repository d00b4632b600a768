"""The memory of a world model: experiences on disk with embeddings of (state, action), retrieved by cosine similarity.
SQLite survives crashes and can be shared by processes; the vectors are also kept in RAM."""

import math
import re
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import orjson
import zstandard
from numpy.typing import NDArray

from treeagent.types import UserError
from treeagent.world_model.trace import argument, target_line
from treeagent.world_model.transition import Experience, Place, from_record

Ids = NDArray[np.int64]
Vectors = NDArray[np.float32]
_WORD = re.compile(r"\w+|[^\w\s]")
_BATCH = 1024
"""Rows that are embedded together and written in one transaction."""
_QUERIES = 64
"""Most places that one matrix product compares with all rows."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS experience (
    id INTEGER PRIMARY KEY,
    digest TEXT UNIQUE NOT NULL,
    origin TEXT NOT NULL,
    record BLOB NOT NULL,
    vector BLOB NOT NULL
);
"""


class ReplayBuffer:
    """A set of experiences by state, action and observation. Several processes may read and add concurrently; when
    ``add`` has returned, its experiences survive a crash. A missing file is created if ``create`` is set."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        if not create and not path.exists():
            raise UserError(f"the replay buffer {path} does not exist: restore it, or fit the world model anew")
        try:
            self._connection = sqlite3.connect(path, timeout=60)
            if create:
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.executescript(_SCHEMA)
            self._connection.execute("SELECT record, vector FROM experience LIMIT 1").fetchone()
        except sqlite3.DatabaseError as error:
            raise UserError(
                f"the replay buffer {path} cannot be used ({error}): restore it, or fit the world model anew"
            ) from error
        self._ids = np.zeros(0, np.int64)
        self._vectors = np.zeros((0, embed([((), "")]).shape[1]), np.float32)

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM experience").fetchone()[0])

    def add(self, experiences: Iterable[Experience]) -> int:
        """Add the experiences that are new. Returns their number."""
        before, waiting = len(self), iter(experiences)
        while batch := list(islice(waiting, _BATCH)):
            vectors = embed([(one.history, one.action) for one in batch]).astype(np.float16)
            rows = [
                (one.digest(), one.origin, zstandard.compress(orjson.dumps(one.to_record())), vector.tobytes())
                for one, vector in zip(batch, vectors, strict=True)
            ]
            with self._connection:
                self._connection.executemany(
                    "INSERT OR IGNORE INTO experience (digest, origin, record, vector) VALUES (?, ?, ?, ?)", rows
                )
        return len(self) - before

    def experiences(self) -> Iterator[Experience]:
        """Return all experiences, in the order in which they were added."""
        found = self._connection.execute("SELECT record FROM experience ORDER BY id")
        return (_unpacked(record) for (record,) in found)

    def nearest(self, places: Sequence[Place], count: int) -> list[list[Experience]]:
        """The ``count`` most similar experiences for each place by cosine, most similar first."""
        self._read_new()
        if count and not len(self._ids):
            raise UserError(f"the replay buffer {self.path} is empty: add real transitions before it is asked for any")
        nearest: list[list[Experience]] = []
        for start in range(0, len(places), _QUERIES):
            ids = self._ids[_top(embed(places[start : start + _QUERIES]) @ self._vectors.T, count)]
            wanted = tuple(set(ids.ravel().tolist()))
            select = f"SELECT id, record FROM experience WHERE id IN ({', '.join('?' * len(wanted))})"
            found = {number: _unpacked(record) for number, record in self._connection.execute(select, wanted)}
            nearest += [[found[number] for number in row] for row in ids.tolist()]
        return nearest

    def _read_new(self) -> None:
        """Load the vectors of rows that were added since the last call."""
        last = int(self._ids[-1]) if len(self._ids) else 0
        rows = self._connection.execute(
            "SELECT id, vector FROM experience WHERE id > ? ORDER BY id", (last,)
        ).fetchall()
        if rows:
            packed = np.frombuffer(b"".join(row[1] for row in rows), np.float16)
            self._ids = np.concatenate([self._ids, [row[0] for row in rows]])
            self._vectors = np.concatenate([self._vectors, packed.reshape(len(rows), -1).astype(np.float32)])

    def close(self) -> None:
        self._connection.close()


def embed(places: Sequence[Place]) -> Vectors:
    """Embed each (state, action) as one vector of length 1, [places, 2 * dimension]; inner products are the mean of
    the cosines of last observations and of actions. A label is replaced by the line of the page that it names."""
    pages = [history[-1].content if history else "" for history, _ in places]
    actions = [_resolved(page, action) for page, (_, action) in zip(pages, places, strict=True)]
    halves = np.concatenate([encode(pages), encode(actions)], axis=1)
    return np.asarray(halves / np.sqrt(2), np.float32)


def _resolved(page: str, action: str) -> str:
    line, label = target_line(page, action), argument(action)
    if not line or not line.lower().startswith(label.lower()) or line.lower() == label.lower():
        return f"{action}\n{line}"
    return f"{action.replace(label, '')}\n{line[len(label) :]}"


def _top(scores: Vectors, count: int) -> Ids:
    """The indices of the ``count`` highest scores of each row, highest first. Overwrites ``scores``."""
    rows, width = np.arange(len(scores)), min(count, scores.shape[1])
    indices = np.zeros((len(scores), width), np.int64)
    for rank in range(width):
        indices[:, rank] = scores.argmax(axis=1)
        scores[rows, indices[:, rank]] = -np.inf
    return indices


def _unpacked(record: bytes) -> Experience:
    return from_record(orjson.loads(zstandard.decompress(record)))


def encode(texts: Sequence[str], dimension: int = 128) -> Vectors:
    """Embed words, word bigrams and word prefixes of each text by feature hashing with signs (Weinberger et al. 2009),
    n occurrences as 1 + log n. Returns rows of length 1, [texts, dimension], or of zeros for an empty text."""
    rows = np.zeros((len(texts), dimension), np.float32)
    for row, text in zip(rows, texts, strict=True):
        found = _WORD.findall(text.lower())
        pairs = [f"{one} {other}" for one, other in pairwise(found)]
        prefixes = [f"{word[:4]}*" for word in found if len(word) > 4]
        for feature, count in Counter([*found, *pairs, *prefixes]).items():
            hashed = zlib.crc32(feature.encode())
            row[hashed % dimension] += (1 if hashed >> 31 else -1) * (1 + math.log(count))
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1), np.float32)

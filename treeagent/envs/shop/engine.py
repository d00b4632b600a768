"""Search over products: SQLite FTS5 with BM25 ranking."""

import re
import sqlite3
from collections.abc import Mapping

_WORD = re.compile(r"[a-z0-9]+")
_MOST_WORDS = 64
"""Most words of a query that are used; further words are ignored."""


class SearchEngine:
    """Ranks texts by BM25. The texts are given by id."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.execute(
            "CREATE VIRTUAL TABLE listing USING fts5(id UNINDEXED, text, tokenize='porter unicode61')"
        )
        self._connection.executemany("INSERT INTO listing VALUES (?, ?)", texts.items())

    def search(self, query: str, limit: int) -> tuple[str, ...]:
        """Return the ids of the ``limit`` best texts that share a word with ``query``, best first; ties by id."""
        words = _WORD.findall(query.lower())
        if not words:
            return ()
        rows = self._connection.execute(
            "SELECT id FROM listing WHERE listing MATCH ? ORDER BY round(bm25(listing), 9), id LIMIT ?",
            (" OR ".join(f'"{word}"' for word in words[:_MOST_WORDS]), limit),
        )
        return tuple(identifier for (identifier,) in rows)

    def close(self) -> None:
        """Free the index."""
        self._connection.close()

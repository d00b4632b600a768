"""Search over products: SQLite FTS5 with BM25 ranking."""

import re
import sqlite3
import threading
from collections.abc import Iterable

from treeagent.envs.shop.catalogue import Product

_WORD = re.compile(r"[a-z0-9]+")


class SearchEngine:
    """Ranks products by their titles, and by the details on their pages where ``read_details``."""

    def __init__(self, products: Iterable[Product], *, read_details: bool = False) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.execute(
            "CREATE VIRTUAL TABLE listing USING fts5(id UNINDEXED, text, tokenize='porter unicode61')"
        )
        self._connection.executemany(
            "INSERT INTO listing VALUES (?, ?)",
            (
                (product.id, " ".join((product.title, *(product.details if read_details else ()))))
                for product in products
            ),
        )

    def search(self, query: str, limit: int) -> tuple[str, ...]:
        """Ids of the ``limit`` best products that share a word with ``query``, best first, ties in order of id."""
        words = _WORD.findall(query.lower())
        if not words:
            return ()
        with self._lock:
            rows = self._connection.execute(
                "SELECT id FROM listing WHERE listing MATCH ? ORDER BY round(bm25(listing), 9), id LIMIT ?",
                (" OR ".join(f'"{word}"' for word in words), limit),
            ).fetchall()
        return tuple(identifier for (identifier,) in rows)

    def close(self) -> None:
        """Drop the index."""
        self._connection.close()

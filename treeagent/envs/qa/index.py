"""A BM25 index of passages: SQLite's FTS5, which every Python brings along."""

import re
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

_WORD = re.compile(r"\w+")
_MOST_WORDS = 32
"""Most words of a query; further words are ignored."""
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be by did do does for from had has have he her his how in is it its of on or she that the "
        "their they this to was were what when where which who whom whose why with",
    )
)
"""Left out of a query that has other words: they match nearly every passage, which takes long and says little."""

_RANK = "round(bm25(passage, 0, 3, 1), 9)"
"""A word in the title counts as three in the text: a passage on somebody is wanted rather than one that names them."""


@dataclass(frozen=True, slots=True)
class Passage:
    """What a search gives."""

    id: str
    title: str
    text: str


class Index:
    """Ranks passages by BM25 over title and text (Robertson and Zaragoza 2009; k1 = 1.2, b = 0.75), words stemmed."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.execute(
            "CREATE VIRTUAL TABLE passage USING fts5(id UNINDEXED, title, text, tokenize='porter unicode61')"
        )
        self._connection.executemany(
            "INSERT INTO passage VALUES (?, ?, ?)", ((each.id, each.title, each.text) for each in passages)
        )

    def search(self, query: str, count: int) -> list[Passage]:
        """The ``count`` best passages that share a word with ``query``, best first, ties in order of entry."""
        words = list(dict.fromkeys(_WORD.findall(query.lower())))
        told = [word for word in words if word not in _STOP_WORDS] or words
        if not told:
            return []
        rows = self._connection.execute(
            f"SELECT id, title, text FROM passage WHERE passage MATCH ? ORDER BY {_RANK}, rowid LIMIT ?",
            (" OR ".join(f'"{word}"' for word in told[:_MOST_WORDS]), count),
        )
        return [Passage(*row) for row in rows]

    def close(self) -> None:
        """Free the index."""
        self._connection.close()

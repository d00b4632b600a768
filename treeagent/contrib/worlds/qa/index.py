"""A BM25 index of passages, with SQLite's FTS5 from the standard library."""

import re
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

_WORD = re.compile(r"\w+")
_MOST_WORDS = 32
"""Most words of a query that are used; further words are ignored."""
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be by did do does for from had has have he her his how in is it its of on or she that the "
        "their they this to was were what when where which who whom whose why with",
    )
)
"""Words that are dropped from a query that has other words. They match nearly every passage, so that they cost time
and do not help the ranking."""

_RANK = "round(bm25(passage, 0, 3, 1), 9)"
"""SQL of the score. A word in the title counts three times as much as one in the text, so that the article about a
person ranks above articles that mention the person."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One passage of a corpus."""

    id: str
    title: str
    text: str


class Index:
    """Ranks passages by BM25 over title and text, with stemming (Robertson and Zaragoza 2009; k1 = 1.2, b = 0.75)."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.execute(
            "CREATE VIRTUAL TABLE passage USING fts5(id UNINDEXED, title, text, tokenize='porter unicode61')"
        )
        self._connection.executemany(
            "INSERT INTO passage VALUES (?, ?, ?)", ((each.id, each.title, each.text) for each in passages)
        )

    def search(self, query: str, count: int) -> list[Passage]:
        """Return the ``count`` best passages that share a word with ``query``, best first; ties by insertion order."""
        words = list(dict.fromkeys(_WORD.findall(query.lower())))
        terms = [word for word in words if word not in _STOP_WORDS] or words
        if not terms:
            return []
        rows = self._connection.execute(
            f"SELECT id, title, text FROM passage WHERE passage MATCH ? ORDER BY {_RANK}, rowid LIMIT ?",
            (" OR ".join(f'"{word}"' for word in terms[:_MOST_WORDS]), count),
        )
        return [Passage(*row) for row in rows]

    def close(self) -> None:
        self._connection.close()

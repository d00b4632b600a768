"""A BM25 index of passages, questions about them with their verifier, and a corpus of the user's own files."""

import hashlib
import re
import sqlite3
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from treeagent.types import Split, Task, UserError

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


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True, slots=True)
class Hop:
    """One search on the way to the answer."""

    query: str
    asks: str = ""
    """Name of the relation whose object is searched, such as ``author``."""
    finds: str = ""
    """The object that the right passage names."""


@dataclass(frozen=True, slots=True)
class Question:
    """The answer key of a question. ``Task.data`` holds it."""

    answers: tuple[str, ...]
    """Accepted wordings of the answer."""
    hops: tuple[Hop, ...]


def normalised(text: str) -> str:
    """Convert to lower case and remove punctuation, articles and redundant spaces, as in SQuAD's evaluation (Rajpurkar
    et al. 2016)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def right(question: Question, answer: str) -> bool:
    """Whether the normalised answer equals one of the normalised accepted answers. An empty answer is wrong."""
    normalised_answer = normalised(answer)
    return normalised_answer != "" and normalised_answer in map(normalised, question.answers)


class _QuestionLine(BaseModel):
    """The fields used from a line of the file of questions."""

    question: Annotated[str, Field(min_length=1)]
    answers: Annotated[list[str], Field(min_length=1)]


_TENTHS: Mapping[int, Split] = {0: "test", 1: "validation"}
_Line = TypeVar("_Line")


class OwnFiles:
    """The passages and questions of two JSONL files. A hash of the question assigns a tenth of them to validation and a
    tenth to test. Duplicate questions are dropped."""

    def __init__(self, corpus: Path, questions: Path) -> None:
        self.passages = _lines(corpus, Passage)
        self._path = questions
        self._tasks: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
        seen = set[str]()
        for line in _lines(questions, _QuestionLine):
            if not all(map(normalised, line.answers)):
                raise UserError(
                    f"{questions} answers {line.question!r} by {line.answers}: give answers that hold a word"
                )
            digest = hashlib.blake2b(normalised(line.question).encode(), digest_size=8)
            if digest.hexdigest() not in seen:
                seen.add(digest.hexdigest())
                split = _TENTHS.get(digest.digest()[0] % 10, "train")
                data = to_jsonable_python(Question(tuple(line.answers), (Hop(line.question),)))
                self._tasks[split].append(Task(f"qa-{digest.hexdigest()}", line.question, split, data=data))

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        known = self._tasks[split]
        if start + count > len(known):
            raise UserError(
                f"{split} questions {start} to {start + count} are asked for, but {self._path} has {len(known)} of "
                "them: bring more"
            )
        return known[start : start + count]


def _lines(path: Path, form: type[_Line]) -> Iterator[_Line]:
    read: TypeAdapter[_Line] = TypeAdapter(form)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield read.validate_json(line)
            except ValidationError as error:
                first = error.errors()[0]
                field = ".".join(map(str, first["loc"])) or "the line"
                raise UserError(
                    f"{path}:{number} has another form ({field}: {first['msg']}): mend that line"
                ) from error

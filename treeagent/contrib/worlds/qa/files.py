"""A corpus and questions from the user's own files."""

import hashlib
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from treeagent.contrib.worlds.qa.index import Passage
from treeagent.types import Split, Task, UserError

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

"""A corpus and questions of the user's own."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from treeagent.envs.qa.index import Passage
from treeagent.envs.qa.questions import Hop, Question, data_of, normalised
from treeagent.types import Split, Task, UserError


class _QuestionLine(BaseModel):
    """A line of the file of questions, as far as it is read."""

    question: Annotated[str, Field(min_length=1)]
    answers: Annotated[list[str], Field(min_length=1)]


_PASSAGE: TypeAdapter[Passage] = TypeAdapter(Passage)
_QUESTION: TypeAdapter[_QuestionLine] = TypeAdapter(_QuestionLine)
_TENTHS: Mapping[int, Split] = {0: "test", 1: "validation"}
_Line = TypeVar("_Line")


def read_passages(path: str) -> Iterator[Passage]:
    """The passages of a JSONL file.

    Raises:
        UserError: it cannot be read, or a line is no passage.
    """
    return _lines(path, _PASSAGE)


def read_questions(path: str) -> Mapping[Split, Sequence[Task]]:
    """The questions of a JSONL file: by a hash of the question one of ten is for validation, one for the test. What is
    asked twice is taken once.

    Raises:
        UserError: it cannot be read, or a line is no question.
    """
    tasks: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
    seen = set[str]()
    for line in _lines(path, _QUESTION):
        if not all(map(normalised, line.answers)):
            raise UserError(f"{path} answers {line.question!r} by {line.answers}: give answers that hold a word")
        digest = hashlib.blake2b(normalised(line.question).encode(), digest_size=8)
        if digest.hexdigest() not in seen:
            seen.add(digest.hexdigest())
            split = _TENTHS.get(digest.digest()[0] % 10, "train")
            question = Question(tuple(line.answers), (Hop(line.question),))
            tasks[split].append(Task(f"qa-{digest.hexdigest()}", line.question, split, data=data_of(question)))
    return tasks


def _lines(path: str, form: TypeAdapter[_Line]) -> Iterator[_Line]:
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, start=1):
                yield _read(line, form, f"{path}:{number}")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): give a JSONL file") from error


def _read(line: bytes, form: TypeAdapter[_Line], where: str) -> _Line:
    try:
        return form.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the line"
        raise UserError(f"{where} is not of the form that is read ({field}: {first['msg']}): mend that line") from error

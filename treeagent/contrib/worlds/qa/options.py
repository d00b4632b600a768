"""Options of question answering by search."""

from typing import Self

from pydantic import ConfigDict, Field, FilePath, model_validator
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class QaOptions:
    """Settings of ``QaEnv``."""

    difficulty: int = Field(default=2, ge=1, le=3)
    """Number of hops: articles that have to be read, each of which names the next one."""
    articles: int = Field(default=1200, ge=60, le=60_000)
    """Number of articles in the generated encyclopedia."""
    passages: int = Field(default=3, ge=1, le=10)
    """Passages that a search returns if the call has no argument ``k``."""
    corpus: FilePath | None = None
    """Your own corpus, instead of the encyclopedia: a JSONL file with ``id``, ``title`` and ``text``. It is indexed in
    memory."""
    questions: FilePath | None = None
    """Questions about ``corpus``: a JSONL file with ``question`` and ``answers``, a list of accepted wordings."""

    @model_validator(mode="after")
    def _files_together(self) -> Self:
        if (self.corpus is None) != (self.questions is None):
            raise ValueError("corpus and questions belong together: give both files or neither")
        return self

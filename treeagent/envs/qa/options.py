"""The settings of search question answering."""

from typing import Self

from pydantic import ConfigDict, Field, FilePath, model_validator
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class QaOptions:
    """Settings of ``QaEnv``."""

    difficulty: int = Field(default=2, ge=1, le=3)
    """Hops: articles that have to be read, each of which names the next one."""
    articles: int = Field(default=1200, ge=60, le=60_000)
    """Size of the encyclopedia."""
    passages: int = Field(default=3, ge=1, le=10)
    """Passages that a search gives where it does not say how many."""
    corpus: FilePath | None = None
    """A corpus of your own in place of the encyclopedia: a JSONL file of ``id``, ``title`` and ``text``. It is indexed
    in memory."""
    questions: FilePath | None = None
    """Questions on it: a JSONL file of ``question`` and ``answers``, a list of accepted wordings."""

    @model_validator(mode="after")
    def _files_together(self) -> Self:
        if (self.corpus is None) != (self.questions is None):
            raise ValueError("corpus and questions belong together: give both files or neither")
        return self

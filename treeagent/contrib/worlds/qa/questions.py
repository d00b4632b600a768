"""Questions, and the check of their answers."""

import re
import string
from dataclasses import dataclass

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

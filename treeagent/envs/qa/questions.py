"""Questions, and when an answer to one is right."""

import re
import string
from dataclasses import dataclass

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True, slots=True)
class Hop:
    """One search of a demonstrator."""

    query: str
    asks: str = ""
    """What is looked for (``author``)."""
    finds: str = ""
    """What the right passage says."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question's answer key: what ``Task.data`` carries."""

    answers: tuple[str, ...]
    """Wordings that are accepted."""
    hops: tuple[Hop, ...]


def normalised(text: str) -> str:
    """Lower case, no punctuation, articles or needless spaces, as in SQuAD's evaluation (Rajpurkar et al. 2016)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def right(question: Question, answer: str) -> bool:
    """Exact match of the normalised texts with one of the accepted answers. An answer that says nothing is wrong."""
    said = normalised(answer)
    return said != "" and said in map(normalised, question.answers)

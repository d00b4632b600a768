"""The environment of question answering by search."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import pydantic.dataclasses
from pydantic import ConfigDict, Field, FilePath, model_validator

from treeagent.contrib.worlds.qa.corpus import Index, OwnFiles, Question, right
from treeagent.contrib.worlds.qa.encyclopedia import Encyclopedia
from treeagent.envs.base import ToolSpec, probability
from treeagent.envs.calls import text_tool
from treeagent.envs.visit import CallRefused, ToolEnv
from treeagent.types import Split, Task, ToolCall


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
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


_MOST_PASSAGES = 10
_TOOLS = (
    ToolSpec(
        "search",
        "Find the passages that fit a query best.",
        {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "k": {"type": "integer", "minimum": 1, "maximum": _MOST_PASSAGES, "description": "How many passages."},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
        read_only=True,
    ),
    text_tool("answer", "Answer the question in as few words as can be. Ends the visit.", "text", answers=True),
)


@dataclass(frozen=True, slots=True)
class Visit:
    """The state of an episode. The corpus never changes."""

    queries: tuple[str, ...] = ()
    """The queries so far. Only demonstrators use this and ``read``."""
    read: str = ""
    """The result of the last search."""
    answer: str | None = None


class QaEnv(ToolEnv[Question, Visit]):
    """Questions that need one to three searches in a corpus with BM25 ranking, each for what the previous one found.
    The reward is 1 for an accepted answer, up to case, punctuation and articles, and otherwise 0.

    Calls are ``search[query]``, ``search {"query": ..., "k": 5}`` and ``answer[text]``, or tool calls. The corpus is a
    generated encyclopedia, or comes from the user's own files."""

    options_type = QaOptions
    key_type = Question
    visit_type = Visit
    opening = "an encyclopedia is open"

    def __init__(self, options: QaOptions | None = None) -> None:
        self.options = options or QaOptions()
        corpus, questions = self.options.corpus, self.options.questions
        self._source: Encyclopedia | OwnFiles
        if corpus is not None and questions is not None:
            self._source = OwnFiles(corpus, questions)
        else:
            self._source = Encyclopedia(self.options.articles, self.options.difficulty)
        self._index = Index(self._source.passages)

    def act(self, call: ToolCall) -> str:
        if call.name == "answer":
            self.visit = replace(self.visit, answer=str(call.arguments["text"]))
            return "answered"
        query, count = str(call.arguments["query"]), call.arguments.get("k", self.options.passages)
        if not isinstance(count, int) or not 1 <= count <= _MOST_PASSAGES:
            raise CallRefused(f"k of search must be between 1 and {_MOST_PASSAGES}")
        found = self._index.search(query, count)
        listing = "\n".join(f"{each.title}: {each.text}" for each in found) or "nothing found"
        self.visit = replace(self.visit, queries=(*self.visit.queries, query), read=listing)
        return listing

    def tools(self) -> Sequence[ToolSpec]:
        return _TOOLS

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return self._source.tasks(split, count, start)

    def verdict(self) -> float | None:
        return None if self.visit.answer is None else float(right(self.key, self.visit.answer))

    def demonstrator(self, noise: float) -> "QaDemonstrator":
        return QaDemonstrator(self, noise)

    def close(self) -> None:
        self._index.close()


_NAME = re.compile(r"[A-Z]\w+(?: (?:and )?[A-Z]\w+)*")


class QaDemonstrator:
    """Looks up one article after another, each named in the previous one, then answers. A thought says what was read
    and what to find next.

    With probability ``noise`` it searches for another name that it has read, or answers with one; if it has read
    nothing, it searches for a single word. It then continues as before. For a question from a file it knows only the
    answer, so it searches for the text of the question.
    """

    def __init__(self, env: QaEnv, noise: float) -> None:
        self._env, self._noise = env, probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        question, visit = self._env.key, self._env.visit
        hops = [hop for hop in question.hops if hop.query not in visit.queries]
        done = question.hops[: len(question.hops) - len(hops)]
        thoughts = [f"{done[-1].asks} {done[-1].finds}"] if done and done[-1].asks else []
        thoughts += [f"need {hops[0].asks}"] if hops and hops[0].asks else []
        meant = f"search[{hops[0].query}]" if hops else f"answer[{question.answers[0]}]"
        return " . ".join(thoughts), self._slip(meant, rng) if rng.random() < self._noise else meant

    def _slip(self, meant: str, rng: random.Random) -> str:
        question, visit = self._env.key, self._env.visit
        names = [name for name in dict.fromkeys(_NAME.findall(visit.read)) if not right(question, name)]
        known = names or question.hops[0].query.split()
        slips = [f"search[{each}]" for each in known] + [f"answer[{name}]" for name in names]
        others = [slip for slip in slips if slip != meant]
        return rng.choice(others) if others else meant

"""Search question answering as an environment."""

import functools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from treeagent.envs.base import StepResult, ToolSpec, probability, task_to_play
from treeagent.envs.calls import read_call, text_tool
from treeagent.envs.qa.encyclopedia import Encyclopedia
from treeagent.envs.qa.files import read_passages, read_questions
from treeagent.envs.qa.index import Index, Passage
from treeagent.envs.qa.options import QaOptions
from treeagent.envs.qa.questions import Question, question_of, right
from treeagent.envs.visit import VisitEnv
from treeagent.types import Split, Task, ToolCall, UserError

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
    text_tool("answer", "Answer the question in as few words as can be. Ends the visit.", "text"),
)


@dataclass(frozen=True, slots=True)
class Visit:
    """All that an episode remembers; the corpus never changes."""

    queries: tuple[str, ...] = ()
    """What was looked for. For demonstrators: nothing depends on this or ``read``."""
    read: str = ""
    """What the last search gave."""
    answer: str | None = None


class QaEnv(VisitEnv[Visit]):
    """Questions that take one to three searches in a corpus ranked by BM25, each for what the last one found. Reward is
    1 for an accepted answer, word for word but for case, punctuation and articles, else 0.

    Calls are ``search[query]``, ``search {"query": ..., "k": 5}`` and ``answer[text]``, or tool calls. The corpus is a
    generated encyclopedia, or files of the user's own.

    Raises:
        UserError: the user's files cannot be read.
    """

    options_type = QaOptions
    visit_type = Visit

    def __init__(self, options: QaOptions | None = None) -> None:
        self.options = options or QaOptions()
        path = self.options.questions
        self._of_file = None if path is None else read_questions(path)
        if self.options.corpus is not None and not Path(self.options.corpus).is_file():
            raise UserError(f"corpus {self.options.corpus} is no file: give a JSONL file of id, title and text")

    @property
    def question(self) -> Question:
        """The current task's answer key. For verifiers and demonstrators only."""
        return question_of(self._place()[0])

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        """Start ``options["task"]``, or training task number ``seed``."""
        task = task_to_play(self, seed, options)
        question_of(task)
        self._at = task, Visit()
        self._index  # noqa: B018 (it is made here: no search should wait for it)
        return "an encyclopedia is open", {}

    def step(self, action: str | ToolCall) -> StepResult:
        visit = self.visit
        call = read_call(action, _TOOLS) if visit.answer is None else "the question is answered already"
        if isinstance(call, str):
            return call, 0.0, visit.answer is not None, False, {"tool_error": call}
        if call.name == "answer":
            self._go_on(replace(visit, answer=str(call.arguments["text"])))
            return "answered", self.verify(), True, False, {}
        query, count = str(call.arguments["query"]), call.arguments.get("k", self.options.passages)
        if not isinstance(count, int) or not 1 <= count <= _MOST_PASSAGES:
            refusal = f"k of search must be between 1 and {_MOST_PASSAGES}"
            return refusal, 0.0, False, False, {"tool_error": refusal}
        found = self._index.search(query, count)
        shown = "\n".join(f"{each.title}: {each.text}" for each in found) or "nothing found"
        self._go_on(replace(visit, queries=(*visit.queries, query), read=shown))
        return shown, 0.0, False, False, {}

    def tools(self) -> Sequence[ToolSpec]:
        return _TOOLS

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        if self._of_file is None:
            return self._encyclopedia.tasks(split, self.options.difficulty, count, start)
        known = self._of_file[split]
        if start + count > len(known):
            raise UserError(
                f"{split} questions {start} to {start + count} are asked for, but {self.options.questions} has "
                f"{len(known)} of them: bring more"
            )
        return known[start : start + count]

    def verify(self) -> float:
        """1 for an accepted answer, 0 for a wrong one and before there is one."""
        answer = self.visit.answer
        return 0.0 if answer is None else float(right(self.question, answer))

    def demonstrator(self, noise: float) -> "QaDemonstrator":
        return QaDemonstrator(self, noise)

    def close(self) -> None:
        if "_index" in self.__dict__:
            self._index.close()
            del self._index

    @functools.cached_property
    def _encyclopedia(self) -> Encyclopedia:
        return Encyclopedia(self.options.articles)

    @functools.cached_property
    def _index(self) -> Index:
        corpus = self.options.corpus
        passages: Sequence[Passage] = self._encyclopedia.passages
        return Index(passages if corpus is None else read_passages(corpus))


_NAME = re.compile(r"[A-Z]\w+(?: (?:and )?[A-Z]\w+)*")


class QaDemonstrator:
    """Looks up one article after the other, each time what the last one has named, then answers. A thought says what
    was read and what is to be found next.

    With probability ``noise`` it looks up another name that it has read, or answers with one; where it has read
    nothing, it looks for a single word. It then goes on from where it was. Of a question from a file it only knows the
    answer: it looks for the question as it stands.
    """

    def __init__(self, env: QaEnv, noise: float) -> None:
        self._env, self._noise = env, probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        question, visit = self._env.question, self._env.visit
        hops = [hop for hop in question.hops if hop.query not in visit.queries]
        done = question.hops[: len(question.hops) - len(hops)]
        said = [f"{done[-1].asks} {done[-1].finds}"] if done and done[-1].asks else []
        said += [f"need {hops[0].asks}"] if hops and hops[0].asks else []
        meant = f"search[{hops[0].query}]" if hops else f"answer[{question.answers[0]}]"
        return " . ".join(said), self._slip(meant, rng) if rng.random() < self._noise else meant

    def _slip(self, meant: str, rng: random.Random) -> str:
        question, visit = self._env.question, self._env.visit
        names = [name for name in dict.fromkeys(_NAME.findall(visit.read)) if not right(question, name)]
        known = names or question.hops[0].query.split()
        slips = [f"search[{each}]" for each in known] + [f"answer[{name}]" for name in names]
        others = [slip for slip in slips if slip != meant]
        return rng.choice(others) if others else meant

"""The generated questions of reasoning-gym (Stojanovski et al. 2025): one question, one answer, its own score."""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pydantic.dataclasses
from pydantic import ConfigDict, Field

from treeagent.contrib.worlds.tasksets import TaskSetEnv, package, split_of, written
from treeagent.envs.calls import text_tool
from treeagent.types import ToolCall, UserError

_VERSION = "0.1.25"
LEFT_OUT: Mapping[str, str] = {
    **dict.fromkeys(
        ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"), "knows no own answer"
    ),
    "composite": "wants a configuration",
    "game_of_life_halting": "accepts any text",
    **dict.fromkeys(
        ("binary_matrix", "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication", "puzzle24"),
        "evaluates the answer as code",
    ),
    **dict.fromkeys(("simple_integration", "spiral_matrix", "string_insertion"), "evaluates the answer as code"),
}
"""Data sets that are not offered, and why."""
_TOO_LARGE = re.compile(r"e[+-]?\d{4}", re.IGNORECASE)
"""Numbers such as 1e999999999, which Python's fractions write out."""


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ReasoningOptions:
    """Settings of ``ReasoningEnv``."""

    dataset: str = "chain_sum"
    """A data set of reasoning-gym, such as chain_sum or sudoku."""
    config: Mapping[str, Any] = Field(default_factory=dict)
    """The data set's own settings, such as {min_terms = 2}."""
    questions: int = Field(default=400, ge=1, le=100_000)
    """How many questions are generated. Equal ones count once."""


@dataclass(frozen=True, slots=True)
class Visit:
    """The state of an episode: the score of the answer."""

    score: float | None = None


class ReasoningEnv(TaskSetEnv[Visit]):
    """reasoning-gym's questions of one data set, which are answered in one turn.

    ``answer[text]`` ends the episode. The reward is 1 if the data set's own score is 1, otherwise 0. Data sets without
    an own answer, and those that evaluate the answer as code, are refused."""

    extra = "reasoning"
    options_type = ReasoningOptions
    visit_type = Visit
    specs = (text_tool("answer", "Give the final answer. Ends the visit.", "text", answers=True),)
    idle = "answer[I do not know]"

    def __init__(self, options: ReasoningOptions | None = None) -> None:
        self.options = options or ReasoningOptions()
        name = self.options.dataset
        self.name = f"reasoning-{name}"
        gym = package("reasoning_gym", "reasoning-gym", _VERSION, "'treeagent[reasoning]'")
        known = offered(gym)
        if name not in known:
            why = LEFT_OUT.get(name, "is unknown")
            raise UserError(f"environment.options.dataset {name!r} {why}: use one of {', '.join(known)}")
        try:
            self._data = gym.create_dataset(name, size=self.options.questions, seed=0, **self.options.config)
        except (AssertionError, TypeError, ValueError) as error:
            raise UserError(f"environment.options.config is refused by {name} ({error})") from error
        self._entry = functools.lru_cache(maxsize=1024)(self._data.__getitem__)
        questions: dict[str, int] = {}
        for index in range(self.options.questions):
            questions.setdefault(self._entry(index)["question"], index)
        self.items = {str(index): split_of(question) for question, index in questions.items()}

    def prompt(self, item: str) -> str:
        return str(self._entry(int(item))["question"])

    def start(self, item: str) -> tuple[Visit, str]:
        return Visit(), "Answer the question."

    def act(self, call: ToolCall) -> str:
        self.visit = Visit(self._score(str(call.arguments["text"]).strip()))
        return "answered"

    def verdict(self) -> float | None:
        return self.visit.score

    def plan(self) -> Sequence[str]:
        return [self._written(self.key.item)]

    def slips(self) -> Sequence[str]:
        return [self.idle, *(self._written(item) for item in list(self.items)[:5])]

    def _written(self, item: str) -> str:
        return written(ToolCall("answer", {"text": str(self._entry(int(item))["answer"])}))

    def _score(self, answer: str) -> float:
        if not answer or _TOO_LARGE.search(answer):
            return 0.0
        try:
            return float(self._data.score_answer(answer=answer, entry=self._entry(int(self.key.item))) == 1.0)
        except Exception:  # some data sets raise on what they cannot read
            return 0.0


def offered(gym: Any) -> Sequence[str]:
    """The names of the data sets that are offered."""
    return sorted(gym.factory.DATASETS.keys() - LEFT_OUT.keys())

"""The environment of the SQL analyst."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import pydantic.dataclasses
from pydantic import ConfigDict, Field

from treeagent.contrib.worlds.sql.database import Rows
from treeagent.contrib.worlds.sql.questions import Question, draw_task, right
from treeagent.envs.base import ToolSpec, probability
from treeagent.envs.calls import text_tool
from treeagent.envs.visit import ToolEnv
from treeagent.types import Split, Task, ToolCall


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class SqlOptions:
    """Settings of ``SqlEnv``."""

    difficulty: int = Field(default=2, ge=1, le=3)
    """1: values and counts from one table. 2: also groups, orders and extremes. 3: also joins."""
    rows: int = Field(default=12, ge=6, le=20)
    """Rows of the main table. The second table has twice as many."""
    shown: int = Field(default=8, ge=1)
    """Most rows of a query's result that the agent reads."""


_TOOLS = (
    text_tool("schema", "Show the tables and their columns.", read_only=True),
    text_tool("query", "Run a SELECT and read its rows.", "sql", read_only=True),
    text_tool(
        "answer", "Answer the question by a SELECT that gives what it asks for. Ends the visit.", "sql", answers=True
    ),
)


@dataclass(frozen=True, slots=True)
class Visit:
    """The state of an episode. The database never changes."""

    read_schema: bool = False
    tried: str = ""
    """The last query. Only demonstrators use this and ``read_schema``."""
    answer: str | None = None


class SqlEnv(ToolEnv[Question, Visit]):
    """Questions about generated SQLite databases: look at the tables, try queries, and answer with a query.

    The reward is 1 if the answer returns the same rows as the gold query on this database and on two others with the
    same tables, otherwise 0. The order of rows matters only if the question asks for an order.

    Calls are ``schema[]``, ``query[SELECT ...]`` and ``answer[SELECT ...]``, or tool calls.
    """

    options_type = SqlOptions
    key_type = Question
    visit_type = Visit
    opening = "a database is open"

    def __init__(self, options: SqlOptions | None = None) -> None:
        self.options = options or SqlOptions()
        self._opened = lru_cache(maxsize=64)(Question.database)

    def act(self, call: ToolCall) -> str:
        sql = str(call.arguments.get("sql", ""))
        match call.name:
            case "schema":
                self.visit = replace(self.visit, read_schema=True)
                return "\n".join(self.key.schema.statements())
            case "answer":
                self.visit = replace(self.visit, answer=sql)
                return "answered"
        self.visit = replace(self.visit, tried=sql)
        return self._shown(*self._opened(self.key).query(sql))

    def tools(self) -> Sequence[ToolSpec]:
        return _TOOLS

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return [
            draw_task(split, index, self.options.difficulty, self.options.rows) for index in range(start, start + count)
        ]

    def verdict(self) -> float | None:
        return None if self.visit.answer is None else float(right(self.key, self.visit.answer))

    def demonstrator(self, noise: float) -> "SqlDemonstrator":
        return SqlDemonstrator(self, noise)

    def _shown(self, names: Sequence[str], rows: Rows) -> str:
        lines = [" | ".join(map(_word, names)), *(" | ".join(map(_word, row)) for row in rows[: self.options.shown])]
        hidden_rows = len(rows) - self.options.shown
        return "\n".join((*lines, f"and {hidden_rows} more rows") if hidden_rows > 0 else lines)


def _word(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "NULL" if value is None else str(value)[:200]


class SqlDemonstrator:
    """Looks at the tables, tries the gold query, then answers with it. With probability ``noise`` a query has an error,
    such as another column or a missing condition. After trying an erroneous query, it tries again.
    """

    def __init__(self, env: SqlEnv, noise: float) -> None:
        self._env, self._noise = env, probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        question, visit = self._env.key, self._env.visit
        errs = rng.random() < self._noise
        if not visit.read_schema and not errs:
            return "which tables are there", "schema[]"
        query = self._slip(rng) if errs else question.gold
        return question.plan, f"{'answer' if visit.tried == question.gold else 'query'}[{query}]"

    def _slip(self, rng: random.Random) -> str:
        schema, gold = self._env.key.schema, self._env.key.gold
        columns = [column for column in schema.columns() if re.search(rf"\b{column}\b", gold)]
        slips = [re.sub(rf"\b{old}\b", new, gold) for old in columns for new in schema.columns() if new not in columns]
        slips += [gold.replace("DESC", "ASC"), re.sub(r" WHERE .*?(?= ORDER|$)", "", gold), gold.replace("SELECT ", "")]
        return rng.choice([slip for slip in slips if slip != gold])

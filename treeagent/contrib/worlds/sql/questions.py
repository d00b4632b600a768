"""Questions about a database, drawn from templates together with their gold queries."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from pydantic_core import to_jsonable_python

from treeagent.contrib.worlds.sql.database import THEMES, Database, Schema, draw_schema, same_result
from treeagent.envs.visit import CallRefused
from treeagent.types import SPLITS, Split, Task

SIBLINGS = 2
"""Number of further databases, with the same schema and other rows, on which an answer must be right, too. A constant
or a condition that is right by chance fails there. Zhong et al. (2020) introduced such test suites for SQL."""


@dataclass(frozen=True, slots=True)
class Question:
    """The answer key of a question. ``Task.data`` holds it."""

    seed: int
    rows: int
    schema: Schema
    plan: str
    """The query in plain words, as the thought of a demonstrator."""
    gold: str
    """The gold query."""
    ordered: bool
    """Whether the order of the rows matters."""

    def database(self, sibling: int = 0) -> Database:
        """Build the database of the question (0), or one of its siblings (from 1)."""
        return Database(self.schema, self.rows, 10 * self.seed + sibling)


def draw_task(split: Split, index: int, difficulty: int, rows: int) -> Task:
    """Draw question ``index`` of a split. Splits have different seeds for schema and rows, and no question in common:
    a hash of its words decides its split."""
    seed = 3 * index + SPLITS.index(split)
    rng = random.Random(f"question {difficulty} {seed}")
    while True:
        schema = draw_schema(rng)
        template = rng.choice(_TEMPLATES[: _KNOWN[difficulty]])
        words, plan, gold = template(schema, rng)
        question = Question(seed, rows, schema, plan, gold, ordered=template is _sorted)
        if _split_of(words) == split and _is_informative(question):
            return Task(f"sql{difficulty}-{rows}-{split}-{index}", words, split, seed, to_jsonable_python(question))


def _split_of(words: str) -> Split:
    return SPLITS[blake2b(words.encode(), digest_size=8).digest()[0] % len(SPLITS)]


def right(question: Question, sql: str) -> bool:
    """Whether a query answers the question, both on its database and on the siblings."""
    try:
        return all(
            same_result(database.query(sql)[1], database.query(question.gold)[1], ordered=question.ordered)
            for database in map(question.database, range(1 + SIBLINGS))
        )
    except CallRefused:
        return False


def _is_informative(question: Question) -> bool:
    """Whether the question is informative: on every database the gold query returns some rows but fewer than the main
    table has, and not all databases give the same result."""
    results = [question.database(each).query(question.gold)[1] for each in range(1 + SIBLINGS)]
    return all(0 < len(rows) < question.rows for rows in results) and not all(
        same_result(rows, results[0], ordered=question.ordered) for rows in results
    )


_Drawn = tuple[str, str, str]
"""(question, plan, gold query)."""
_Template = Callable[[Schema, random.Random], _Drawn]


def _count(schema: Schema, rng: random.Random) -> _Drawn:
    column, value = _condition(schema, rng)
    return (
        f"How many {schema.table} have {column} {value}?",
        f"count {schema.table} where {column} is {value}",
        f"SELECT COUNT(*) FROM {schema.table} WHERE {column} = '{value}'",
    )


def _value(schema: Schema, rng: random.Random) -> _Drawn:
    name, column = rng.choice(THEMES[schema.theme].names[:6]), rng.choice((*schema.categories, *schema.numbers))
    return (
        f"What is the {column} of {name}?",
        f"{column} where name is {name}",
        f"SELECT {column} FROM {schema.table} WHERE name = '{name}'",
    )


def _names(schema: Schema, rng: random.Random) -> _Drawn:
    column, value = _condition(schema, rng)
    return (
        f"Which {schema.table} have {column} {value}? Give the names.",
        f"name where {column} is {value}",
        f"SELECT name FROM {schema.table} WHERE {column} = '{value}'",
    )


def _extreme(schema: Schema, rng: random.Random) -> _Drawn:
    column = rng.choice(schema.numbers)
    word, order = rng.choice((("highest", "DESC"), ("lowest", "ASC")))
    return (
        f"Which of the {schema.table} has the {word} {column}? Give the name.",
        f"name with {word} {column}",
        f"SELECT name FROM {schema.table} ORDER BY {column} {order} LIMIT 1",
    )


def _average(schema: Schema, rng: random.Random) -> _Drawn:
    group, column = rng.choice(schema.categories), rng.choice(schema.numbers)
    return (
        f"For each {group} of the {schema.table}, give the {group} and the average {column}.",
        f"{group} and average {column} for each {group}",
        f"SELECT {group}, AVG({column}) FROM {schema.table} GROUP BY {group}",
    )


def _sorted(schema: Schema, rng: random.Random) -> _Drawn:
    (column, value), number = _condition(schema, rng), rng.choice(schema.numbers)
    word, order = rng.choice((("highest", "DESC"), ("lowest", "ASC")))
    return (
        f"Give the names of the {schema.table} with {column} {value}, {word} {number} first.",
        f"name where {column} is {value} by {word} {number}",
        f"SELECT name FROM {schema.table} WHERE {column} = '{value}' ORDER BY {number} {order}",
    )


def _joined_total(schema: Schema, rng: random.Random) -> _Drawn:
    group = rng.choice(schema.categories)
    main, event, amount = schema.table, schema.event, schema.amount
    return (
        f"For each {group} of the {main} that have {event}, give the {group} and the total {amount} of the {event}.",
        f"{group} and total {amount} for each {group}",
        f"SELECT {group}, SUM({amount}) FROM {main} JOIN {event} ON {main}.name = {event}.name GROUP BY {group}",
    )


def _without(schema: Schema, rng: random.Random) -> _Drawn:
    main, event = schema.table, schema.event
    return (
        f"Which {main} have no {event}? Give the names.",
        f"name not in {event}",
        f"SELECT name FROM {main} WHERE name NOT IN (SELECT name FROM {event})",
    )


_TEMPLATES: Sequence[_Template] = (_count, _value, _names, _extreme, _average, _sorted, _joined_total, _without)
_KNOWN = {1: 3, 2: 6, 3: 8}
"""Number of templates that each difficulty draws from."""


def _condition(schema: Schema, rng: random.Random) -> tuple[str, str]:
    column = rng.choice(schema.categories)
    return column, rng.choice(THEMES[schema.theme].categories[column])

"""Generated SQLite databases, and read-only queries on them with bounded time and memory."""

import math
import random
import re
import sqlite3
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib import resources
from itertools import pairwise
from typing import Annotated

from pydantic import BeforeValidator, TypeAdapter

from treeagent.envs.visit import CallRefused

Value = str | int | float | bytes | None
Rows = list[tuple[Value, ...]]

MAX_ROWS = 1000
"""Most rows of a query's result. More rows are an error, because a truncated result could not be compared."""
_MAX_INSTRUCTIONS = 50_000
"""Most instructions of SQLite's virtual machine for one query; gold queries take about 1,000. Unlike a time limit, this
limit refuses the same queries on every machine. ``_LIMITS`` bounds the time and memory of one instruction."""
_STRIDE = 1000
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 500,  # Bytes of a value or a stored row, and so of what one instruction copies.
    sqlite3.SQLITE_LIMIT_COLUMN: 32,  # One comparison in a sort reads all columns.
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 20,  # Matching takes time proportional to the product of both lengths.
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 5000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 50_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
_MAX_CHARACTERS = 1_000_000
"""Most characters of all rows of a query's result together."""
_MAX_EXPANSION = 3_000_000
"""Most characters of a query after its subqueries have been copied to where they are used (``_expansion``). SQLite
copies them before it runs the first instruction, and has no limit for that."""
_TOKEN = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))
    |(?P<number>[0-9][\w$]*)
    |(?P<name>\*|[\w$\x80-\U0010ffff]+|'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^]]*\])
    |\S""",
    re.DOTALL | re.VERBOSE,
)
"""SQLite's tokens. Strings count as names, because SQLite reads some of them as names."""
_SUBQUERY = frozenset({"select", "values", "with"})
_RESERVED = frozenset(
    re.findall(
        r"\w+",
        "select values from where group order having limit union all distinct join on as and or not in is null between "
        "case when then else",
    )
)
"""Keywords that SQLite never reads as names."""
_FUNCTIONS = frozenset(
    re.findall(
        r"\w+",
        "abs avg coalesce count dense_rank first_value glob group_concat ifnull iif instr lag last_value lead length "
        "like lower ltrim max min nth_value ntile nullif rank replace round row_number rtrim sign substr substring sum "
        "total trim typeof upper",
    )
)
"""Functions that a query may call. Their results depend only on their arguments, and not on random numbers, the clock
or the connection."""


@dataclass(frozen=True, slots=True)
class Theme:
    """The topic of a database. A schema uses some of its columns."""

    tables: tuple[str, ...]
    """Possible names of the main table."""
    names: Annotated[tuple[str, ...], BeforeValidator(str.split)]
    """Names of its rows, at least 20."""
    categories: Mapping[str, tuple[str, ...]]
    """Category columns, with their possible values."""
    numbers: Mapping[str, tuple[int, int]]
    """Number columns, with their lowest and highest values."""
    events: tuple[tuple[str, str], ...]
    """(name, number column) of possible second tables. Their rows belong to rows of the main table."""


THEMES = TypeAdapter(tuple[Theme, ...]).validate_python(
    tomllib.loads(resources.files(__package__).joinpath("themes.toml").read_text(encoding="utf-8"))["themes"]
)


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of a database. The main table has the column ``name``, two categories and two numbers. The second
    table, ``event``, has the columns ``name`` and ``amount``."""

    theme: int
    """Index of the theme in ``THEMES``."""
    table: str
    """Name of the main table."""
    categories: tuple[str, ...]
    numbers: tuple[str, ...]
    event: str
    """Name of the second table."""
    amount: str
    """Name of its number column."""

    def columns(self) -> tuple[str, ...]:
        return ("name", *self.categories, *self.numbers)

    def statements(self) -> tuple[str, str]:
        main = ", ".join(
            ("name TEXT", *(f"{each} TEXT" for each in self.categories), *(f"{each} INTEGER" for each in self.numbers))
        )
        return f"{self.table}({main})", f"{self.event}(name TEXT, {self.amount} INTEGER)"


def draw_schema(rng: random.Random) -> Schema:
    """Draw a theme, two of its categories and two of its numbers, in random order."""
    theme = rng.randrange(len(THEMES))
    about = THEMES[theme]
    event, amount = rng.choice(about.events)
    categories, numbers = rng.sample(list(about.categories), 2), rng.sample(list(about.numbers), 2)
    return Schema(theme, rng.choice(about.tables), tuple(categories), tuple(numbers), event, amount)


class Database:
    """A read-only database in memory with ``rows`` rows of the main table. Equal arguments give equal rows; their names
    are the same for every seed."""

    def __init__(self, schema: Schema, rows: int, seed: int) -> None:
        rng = random.Random(f"rows {seed}")
        theme = THEMES[schema.theme]
        names = list(theme.names[:rows])
        rng.shuffle(names)
        # No number occurs twice in a column, so every question for the highest or lowest has one answer.
        numbers = [
            rng.sample(range(low, high + 1), rows) for low, high in map(theme.numbers.__getitem__, schema.numbers)
        ]
        # No cache of statements: for a cached one, SQLite continues the count of instructions from its last run.
        self._connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=0)
        self._connection.execute("PRAGMA temp_store = MEMORY")
        # SQLite's own functions take time proportional to the product of both lengths.
        for name, strip in (("trim", str.strip), ("ltrim", str.lstrip), ("rtrim", str.rstrip)):
            self._connection.create_function(name, 2, partial(_stripped, strip), deterministic=True)
        for statement in schema.statements():
            self._connection.execute(f"CREATE TABLE {statement}")
        for index, name in enumerate(names):
            words = [rng.choice(theme.categories[each]) for each in schema.categories]
            values = (name, *words, *(column[index] for column in numbers))
            self._connection.execute(f"INSERT INTO {schema.table} VALUES ({','.join('?' * len(values))})", values)
        for _ in range(2 * rows):
            # At least two names have no events, so that questions can ask for rows without a match.
            event = (rng.choice(names[2:]), rng.randint(1, 40))
            self._connection.execute(f"INSERT INTO {schema.event} VALUES (?, ?)", event)
        self._connection.execute("PRAGMA query_only = ON")
        for limit, most in _LIMITS.items():
            self._connection.setlimit(limit, most)
        self._connection.set_authorizer(self._authorised)
        self._tables = frozenset({schema.table, schema.event, "sqlite_master"})
        self._instructions = 0
        self._connection.set_progress_handler(self._count_instructions, _STRIDE)

    def query(self, sql: str) -> tuple[list[str], Rows]:
        if _expansion(sql) > _MAX_EXPANSION:
            raise CallRefused("error: the query nests too many subqueries")
        self._instructions = characters = 0
        rows: Rows = []
        try:
            with closing(self._connection.execute(sql)) as cursor:
                for row in cursor:
                    rows.append(row)
                    characters += sum(len(value) for value in row if isinstance(value, str | bytes))
                    if len(rows) > MAX_ROWS or characters > _MAX_CHARACTERS:
                        break
        except sqlite3.Warning:
            raise CallRefused("error: give one statement only") from None
        except (sqlite3.Error, ValueError, OverflowError, MemoryError) as error:
            if self._instructions > _MAX_INSTRUCTIONS:
                raise CallRefused("error: the query takes too long") from None
            if "prohibited" in str(error) or "not authorized" in str(error):
                raise CallRefused(f"error: only reading is allowed ({error})") from None
            raise CallRefused(f"error: {str(error) or 'the query is too large'}") from None
        if len(rows) > MAX_ROWS:
            raise CallRefused(f"error: the query gives more than {MAX_ROWS} rows")
        if characters > _MAX_CHARACTERS:
            raise CallRefused(f"error: the query's rows have more than {_MAX_CHARACTERS} characters")
        if cursor.description is None:
            raise CallRefused("error: that is no query")
        return [column[0] for column in cursor.description], rows

    def _count_instructions(self) -> int:
        self._instructions += _STRIDE
        return self._instructions > _MAX_INSTRUCTIONS

    def _authorised(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE):
            return sqlite3.SQLITE_OK
        # Without a column, the name may be that of a subquery. SQLite's own tables would reveal what other queries did.
        if action == sqlite3.SQLITE_READ and (not second or first in self._tables):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY


def _stripped(strip: Callable[[str, str], str], text: Value, characters: Value) -> str | None:
    """Strip a text as SQLite does: numbers become texts, and the result is NULL if either argument is NULL."""
    return None if text is None or characters is None else strip(str(text), str(characters))


def _expansion(sql: str) -> int:
    """The most characters that a query can have after SQLite has copied each subquery to where it or its column is
    mentioned: its length times the product, over all (sub)queries, of the number of names that each mentions."""
    sql = sql[: _LIMITS[sqlite3.SQLITE_LIMIT_SQL_LENGTH]]  # SQLite refuses a longer query.
    if len(re.findall("select|values", sql, re.IGNORECASE)) < 2:
        return len(sql)
    tokens = [(match.lastgroup, match[0].lower()) for match in _TOKEN.finditer(sql) if match.lastgroup != "comment"]
    mentions = [0]
    around = [0]
    """Number of the subquery that each open bracket belongs to, innermost last."""
    for (kind, token), (_, following) in pairwise([*tokens, (None, "")]):
        if token == "(":
            if following in _SUBQUERY:
                mentions.append(0)
            around.append(len(mentions) - 1 if following in _SUBQUERY else around[-1])
        elif token == ")" and len(around) > 1:
            around.pop()
        elif kind == "name" and token not in _RESERVED and following not in ("(", "."):
            mentions[around[-1]] += 1
    return len(sql) * math.prod(max(1, each) for each in mentions)


def same_result(found: Rows, expected: Rows, *, ordered: bool) -> bool:
    """Whether two results are equal. Numbers may differ by a millionth, relative to the wanted number if its absolute
    value is above 1. Rows may be in any order unless ``ordered``."""
    if len(found) != len(expected):
        return False
    if ordered:
        return all(map(_same_row, found, expected))
    left = list(found)
    for row in expected:
        match = next((index for index, other in enumerate(left) if _same_row(other, row)), None)
        if match is None:
            return False
        del left[match]
    return True


def _same_row(found: Sequence[Value], expected: Sequence[Value]) -> bool:
    return len(found) == len(expected) and all(map(_same_value, found, expected))


def _same_value(found: Value, expected: Value) -> bool:
    if isinstance(found, int | float) and isinstance(expected, int | float):
        return abs(found - expected) <= 1e-6 * max(1.0, abs(expected))
    return type(found) is type(expected) and found == expected

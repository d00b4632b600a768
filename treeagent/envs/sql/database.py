"""Generated SQLite databases, and queries on them that can only read, in bounded time and memory."""

import random
import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treeagent.envs.visit import CallRefused

Value = str | int | float | bytes | None
Rows = list[tuple[Value, ...]]

MAX_ROWS = 1000
"""Rows that a query may give; more are an error, not cut: half a result is no result."""
_MAX_INSTRUCTIONS = 2_000_000
"""Most instructions of SQLite's virtual machine for one query. Unlike a time limit, it ends a query always alike."""
_STRIDE = 10_000
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 5000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
_FUNCTIONS = frozenset(
    re.findall(
        r"\w+",
        "abs avg coalesce count dense_rank first_value glob group_concat ifnull iif instr lag last_value lead length "
        "like lower ltrim max min nth_value ntile nullif rank replace round row_number rtrim sign substr substring sum "
        "total trim typeof upper",
    )
)
"""What a query may call: all of it depends on its arguments alone, none on luck, the clock or the connection."""


@dataclass(frozen=True, slots=True)
class Theme:
    """What a database may be about; a schema takes some of its columns."""

    tables: tuple[str, ...]
    """Possible names of the main table."""
    names: tuple[str, ...]
    """What its rows are called, at least 20."""
    categories: Mapping[str, tuple[str, ...]]
    numbers: Mapping[str, tuple[int, int]]
    """Lowest and highest values."""
    events: tuple[tuple[str, str], ...]
    """(name, number column) of a second table whose rows belong to rows of the first."""


_PEOPLE = tuple(
    re.findall(
        r"\w+", "Ada Ben Cleo Dan Eva Finn Gina Hugo Iris Jon Kim Leo Mia Ned Olga Paul Rosa Sam Tess Uma Vera Will"
    )
)
_TITLES = tuple(
    re.findall(
        r"\w+",
        "Amber Birch Comet Delta Ember Fable Grove Haven Inlet Jade Knoll Lotus Mesa North Opal Pearl Quartz River "
        "Slate Tide Umbra Vale",
    )
)
THEMES = (
    Theme(
        ("employees", "staff", "workers"),
        _PEOPLE,
        {
            "city": ("Oslo", "Rome", "Lima", "Cairo"),
            "team": ("sales", "design", "legal", "support"),
            "level": ("junior", "senior", "lead"),
        },
        {"age": (20, 65), "salary": (2000, 9000), "bonus": (100, 900)},
        (("trips", "cost"), ("sick_notes", "days")),
    ),
    Theme(
        ("books", "titles", "volumes"),
        _TITLES,
        {
            "genre": ("crime", "poetry", "history", "travel"),
            "language": ("English", "Spanish", "Hindi"),
            "cover": ("hard", "soft"),
        },
        {"pages": (80, 900), "price": (5, 60), "year": (1950, 2024)},
        (("loans", "weeks"), ("orders", "copies")),
    ),
    Theme(
        ("hotels", "inns", "lodges"),
        _TITLES,
        {
            "country": ("Spain", "Kenya", "Japan", "Peru"),
            "view": ("sea", "park", "street"),
            "style": ("modern", "rustic", "classic"),
        },
        {"rooms": (8, 300), "price": (40, 400), "floors": (1, 30)},
        (("bookings", "nights"), ("repairs", "cost")),
    ),
)


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of a database: the main one has ``name``, categories and numbers; the second one a ``name``, too."""

    theme: int
    table: str
    categories: tuple[str, ...]
    numbers: tuple[str, ...]
    event: str
    amount: str

    def columns(self) -> tuple[str, ...]:
        return ("name", *self.categories, *self.numbers)

    def statements(self) -> tuple[str, str]:
        main = ", ".join(
            ("name TEXT", *(f"{each} TEXT" for each in self.categories), *(f"{each} INTEGER" for each in self.numbers))
        )
        return f"{self.table}({main})", f"{self.event}(name TEXT, {self.amount} INTEGER)"


def draw_schema(rng: random.Random) -> Schema:
    """Any theme, two of its categories and two of its numbers, in any order."""
    theme = rng.randrange(len(THEMES))
    about = THEMES[theme]
    event, amount = rng.choice(about.events)
    categories, numbers = rng.sample(list(about.categories), 2), rng.sample(list(about.numbers), 2)
    return Schema(theme, rng.choice(about.tables), tuple(categories), tuple(numbers), event, amount)


class Database:
    """A database in memory that can only be read. Equal arguments give equal rows.

    Args:
        schema: its tables.
        rows: of the main table.
        seed: draws the rows; their names are the same under every seed.
    """

    def __init__(self, schema: Schema, rows: int, seed: int) -> None:
        rng = random.Random(f"rows {seed}")
        theme = THEMES[schema.theme]
        names = list(theme.names[:rows])
        rng.shuffle(names)
        # No number twice in a column, so that every question for the highest has one answer.
        numbers = [
            rng.sample(range(low, high + 1), rows) for low, high in map(theme.numbers.__getitem__, schema.numbers)
        ]
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        for statement in schema.statements():
            self._connection.execute(f"CREATE TABLE {statement}")
        for place, name in enumerate(names):
            words = [rng.choice(theme.categories[each]) for each in schema.categories]
            values = (name, *words, *(column[place] for column in numbers))
            self._connection.execute(f"INSERT INTO {schema.table} VALUES ({','.join('?' * len(values))})", values)
        for _ in range(2 * rows):
            # Some have none, so that what a join leaves out can be asked for.
            event = (rng.choice(names[2:]), rng.randint(1, 40))
            self._connection.execute(f"INSERT INTO {schema.event} VALUES (?, ?)", event)
        self._connection.execute("PRAGMA query_only = ON")
        for limit, most in _LIMITS.items():
            self._connection.setlimit(limit, most)
        self._connection.set_authorizer(_authorised)
        self._instructions = 0
        self._connection.set_progress_handler(self._go_on, _STRIDE)

    def query(self, sql: str) -> tuple[list[str], Rows]:
        """Column names and rows.

        Raises:
            CallRefused: it is no query, would do more than read, or takes too much.
        """
        self._instructions = 0
        try:
            cursor = self._connection.execute(sql)
            rows: Rows = cursor.fetchmany(MAX_ROWS + 1)
            cursor.close()
        except sqlite3.Warning:
            raise CallRefused("error: give one statement only") from None
        except (sqlite3.Error, ValueError, OverflowError, MemoryError) as error:
            if self._instructions > _MAX_INSTRUCTIONS:
                raise CallRefused("error: the query takes too long") from None
            if "prohibited" in str(error) or "not authorized" in str(error):
                raise CallRefused(f"error: only reading is allowed ({error})") from None
            raise CallRefused(f"error: {error}") from None
        if len(rows) > MAX_ROWS:
            raise CallRefused(f"error: the query gives more than {MAX_ROWS} rows")
        if cursor.description is None:
            raise CallRefused("error: that is no query")
        return [column[0] for column in cursor.description], rows

    def _go_on(self) -> int:
        self._instructions += _STRIDE
        return self._instructions > _MAX_INSTRUCTIONS


def _authorised(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def same_result(found: Rows, wanted: Rows, *, ordered: bool) -> bool:
    """Whether two results agree: numbers up to a millionth, rows in any order unless ``ordered``."""
    if len(found) != len(wanted):
        return False
    if ordered:
        return all(map(_same_row, found, wanted))
    left = list(found)
    for row in wanted:
        match = next((place for place, other in enumerate(left) if _same_row(other, row)), None)
        if match is None:
            return False
        del left[match]
    return True


def _same_row(found: Sequence[Value], wanted: Sequence[Value]) -> bool:
    return len(found) == len(wanted) and all(map(_same_value, found, wanted))


def _same_value(found: Value, wanted: Value) -> bool:
    if isinstance(found, int | float) and isinstance(wanted, int | float):
        return abs(found - wanted) <= 1e-6 * max(1.0, abs(wanted))
    return type(found) is type(wanted) and found == wanted

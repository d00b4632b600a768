"""The SQL analyst: which answers its verifier accepts, what its databases refuse, and the contract."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeagent.contrib.worlds.sql import SqlEnv, SqlOptions
from treeagent.contrib.worlds.sql.database import Database, Rows, Schema, same_result
from treeagent.contrib.worlds.sql.questions import Question, right
from treeagent.types import ToolCall

SCHEMA = Schema(0, "staff", ("team", "city"), ("age", "salary"), "trips", "cost")


@pytest.fixture
def database() -> Database:
    return Database(SCHEMA, 12, seed=0)


@pytest.fixture
def env() -> SqlEnv:
    return begun()


def begun(index: int = 0, difficulty: int = 3) -> SqlEnv:
    env = SqlEnv(SqlOptions(difficulty=difficulty))
    env.reset(options={"task": env.tasks("train", 1, index)[0]})
    return env


def question(gold: str, *, ordered: bool = False) -> Question:
    return Question(0, 12, SCHEMA, "", gold, ordered)


def test_an_answer_is_read_as_its_rows() -> None:
    by_city = question("SELECT city, AVG(age) FROM staff GROUP BY city")
    assert right(by_city, "select city, sum(age) * 1.0 / count(*) from staff group by 1 order by 2 desc;")
    assert not right(by_city, "SELECT city, AVG(salary) FROM staff GROUP BY city")
    assert not right(by_city, "SELECT AVG(age), city FROM staff GROUP BY city")
    first = question("SELECT name FROM staff ORDER BY age DESC", ordered=True)
    assert right(first, "SELECT name FROM staff ORDER BY -age")
    assert not right(first, "SELECT name FROM staff ORDER BY age")
    assert right(question("SELECT name FROM staff"), "SELECT name FROM staff ORDER BY age")


@pytest.mark.parametrize("index", range(6))
def test_no_cheap_answer_is_right(index: int) -> None:
    env = begun(index)
    asked, place = env.key, env.snapshot()
    main, event = asked.schema.table, asked.schema.event
    _, rows = asked.database().query(asked.gold)
    # A query that writes out the rows of the answer: right here, and wrong on the sibling databases.
    constants = " UNION ALL ".join(f"SELECT {', '.join(map(repr, row))}" for row in rows)
    for sql in (
        "",
        "SELECT 1",
        "SELECT 1 WHERE 0",
        f"SELECT * FROM {main}",
        f"SELECT name FROM {main}",
        f"SELECT name FROM {main} UNION SELECT name FROM {event}",
        env.tasks("train", 1, index)[0].prompt,
        constants,
    ):
        env.restore(place)
        assert env.step(ToolCall("answer", {"sql": sql}))[1:3] == (0.0, True), sql
        assert env.step(f"answer[{asked.gold}]")[1:3] == (0.0, True)
        assert env.verify() == 0.0


_VALUES = st.one_of(st.none(), st.integers(-5, 5), st.floats(-5, 5), st.text("ab", max_size=2))


@given(st.lists(st.tuples(_VALUES, _VALUES), max_size=6), st.randoms(use_true_random=False))
def test_rows_agree_in_any_order_and_up_to_a_millionth(rows: Rows, rng: random.Random) -> None:
    shuffled = [tuple(value + 1e-9 if isinstance(value, float) else value for value in row) for row in rows]
    assert same_result(shuffled, rows, ordered=True)
    rng.shuffle(shuffled)
    assert same_result(shuffled, rows, ordered=False)
    assert not same_result([*shuffled, (1, 2)], rows, ordered=False)
    assert not same_result([("other", 1), *shuffled[1:]], rows, ordered=False) or not rows

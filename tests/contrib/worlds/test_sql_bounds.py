"""Queries that try to use much time or memory, write a file, or give a different answer each time."""

import re
import time
from pathlib import Path

import pytest

from treeagent.contrib.worlds.sql.database import Database, Schema
from treeagent.envs.visit import CallRefused

SCHEMA = Schema(0, "staff", ("team", "city"), ("age", "salary"), "trips", "cost")
LONG = f"SELECT replace('{'a' * 24}', 'a', '{'a' * 20}') x"
"""A value nearly as long as the limit."""


def growing(step: str, start: str, body: str = "count(*)", union: str = "UNION ALL", most: int = 1_000_000) -> str:
    return (
        f"WITH RECURSIVE c(i,x) AS (SELECT 1,({start}) {union} SELECT i+1,{step} FROM c WHERE i<{most}) "
        f"SELECT {body} FROM c"
    )


def replaced(times: int, by: int) -> str:
    return "SELECT " + "replace(" * times + "'aaaaaaaaaa'" + f",'a','{'a' * by}')" * times


def chain(depth: int, step: str, last: str = "SELECT 1 FROM c{0} LIMIT 1", name: str = "c{0}") -> str:
    parts = [name.format(0) + "(x) AS (SELECT age FROM staff)"]
    parts += [name.format(i) + "(x) AS (" + step.format(name.format(i - 1)) + ")" for i in range(1, depth)]
    return f"WITH {','.join(parts)} {last.format(depth - 1)}"


def nested(depth: int, step: str) -> str:
    sql = "SELECT age x FROM staff"
    for _ in range(depth):
        sql = step.format(sql)
    return sql


CROSS = "FROM trips a, trips b, trips c, trips d"
ELSE = ", trips a, trips b, trips c, trips d"
HEAVY = {
    "the denial of issue 31": growing("x||''", replaced(4, 9), union="UNION"),
    "values grown by replace": replaced(6, 30),
    "long kept rows": growing("x", LONG, body="count(*), max(x), min(x)"),
    "long sorted rows": growing("x", LONG, body="i, x", most=300) + " ORDER BY x, i",
    "grouped": growing("x", LONG, body="max(n) FROM (SELECT count(*) n") + " GROUP BY x||i)",
    "replace": growing("x", LONG, body="count(replace(x, substr(x,1,240)||'b', ''))"),
    "instr": growing("x", LONG, body="sum(instr(x, substr(x,1,240)||'b'))"),
    "trim of many": growing("x", LONG, body="sum(length(trim(x||'z', replace(x,'a','b')||'a')))"),
    "like of many stars": growing("x", LONG, body="sum(x LIKE '%a%a%a%a%a%a%a%a%b')"),
    "glob of sets": growing("x", LONG, body="sum(x GLOB '*[^b][^b][^b][^b]')"),
    "many patterns of a column": growing("x", LONG, body="count(*)")
    + " WHERE "
    + " OR ".join(["x GLOB '*[^b][^b][^b][^b]b'", "x LIKE '%a_______________b'"] * 20),
    "group_concat": f"SELECT group_concat(a.name || b.name) {CROSS}",
    "sums over frames": f"SELECT sum(a.cost) OVER (ROWS BETWEEN CURRENT ROW AND 9999 FOLLOWING) {CROSS}",
    "a cross join": f"SELECT count(*) {CROSS}, trips e, trips f",
    "endless recursion": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n) SELECT count(*) FROM n",
    "many long columns": growing("x", LONG, body=",".join(["x||i"] * 32), most=1000),
    "many columns sorted": f"SELECT DISTINCT {','.join(['NULL'] * 900)},a.cost*b.cost {CROSS}",
    "subqueries used twice": chain(20, "SELECT 1 FROM {0} a, {0} b"),
    "subqueries with odd names used twice": chain(
        16, "SELECT 1 FROM {0} a, {0} b", 'SELECT 1 FROM "!{0}" LIMIT 1', '"!{0}"'
    ),
    "subqueries behind comments": chain(16, "SELECT 1 FROM {0}/*)*/, {0}--(\n ").replace("AS (", "AS/*\n*/(/**/"),
    "columns used many times": nested(4, f"SELECT coalesce({','.join('x' * 50)}) x FROM ({{0}})"),
    "a long subquery used many times": chain(4, f"SELECT 1 FROM {','.join(['{0}'] * 40)}").replace(
        "SELECT age FROM staff", f"SELECT 1 WHERE 1 IN ({','.join('1' * 1500)})"
    ),
    "unions joined": "SELECT count(*) FROM " + ",".join(["(SELECT name FROM trips UNION ALL SELECT 1)"] * 18),
    "many conditions": f"SELECT count(*) {CROSS} WHERE " + " OR ".join(f"a.cost={i}" for i in range(90)),
    "a deep expression": "SELECT " + "-(" * 2000 + "1" + ")" * 2000,
    "a long query": f"SELECT '{'x' * 10_000_000}'",
    "json trees": f"SELECT count(*) FROM json_tree('{'[' * 450}{']' * 450}'){ELSE}",
    "zeroblob": "SELECT zeroblob(1000000000)",
    "round": "SELECT round(1e300, 1000000000)",
}


def peak() -> int:
    """Peak memory of the process since ``forget_peak``, in bytes."""
    return 1024 * int(re.findall(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[0])


def forget_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


@pytest.mark.parametrize("sql", HEAVY.values(), ids=HEAVY)
def test_no_query_takes_more_than_a_second_or_64_megabytes(
    sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQLITE_TMPDIR", str(tmp_path))
    database = Database(SCHEMA, 20, seed=0)
    before, began, outcomes = forget_peak(), time.process_time(), []
    for _ in range(2):
        try:
            outcomes.append(str(database.query(sql)))
        except CallRefused as error:
            outcomes.append(str(error))
    assert time.process_time() - began < 2
    assert peak() - before < 64_000_000
    assert outcomes[0] == outcomes[1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH 'x.db' AS x",
        "VACUUM INTO 'x.db'",
        "PRAGMA temp_store = FILE",
        "PRAGMA temp_store_directory = '.'",
        "EXPLAIN PRAGMA query_only = OFF",
        "SELECT load_extension('x')",
        "SELECT * FROM pragma_table_info('staff')",
        "SELECT nstep FROM sqlite_stmt",
        "SELECT value FROM json_each('[1]')",
        "CREATE VIRTUAL TABLE x USING fts5(y)",
        "ANALYZE",
    ],
)
def test_a_query_reads_the_two_tables_and_writes_nothing(
    sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database = Database(SCHEMA, 12, seed=0)
    with pytest.raises(CallRefused):
        database.query(sql)
    assert not list(tmp_path.iterdir())

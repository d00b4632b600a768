"""Queries that try to use much time or memory, write a file, or give a different answer each time."""

import re
import time
from pathlib import Path

import pytest

from treeagent.contrib.worlds.sql.database import Database, Schema
from treeagent.envs import CallRefused

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
    "long distinct values": growing("x||''", LONG, union="UNION"),
    "long kept rows": growing("x", LONG, body="count(*), max(x), min(x)"),
    "long sorted rows": growing("x", LONG, body="i, x", most=300) + " ORDER BY x, i",
    "long sorted rows of a cross join": f"SELECT t.x {CROSS}, ({LONG}) t ORDER BY a.cost, b.cost",
    "sorted without case": growing("x", LONG, body="x") + " ORDER BY x COLLATE NOCASE, i LIMIT 1",
    "distinct without case": growing("x", LONG, body="DISTINCT x||i COLLATE NOCASE") + " LIMIT 1",
    "counted distinct": growing("x", LONG, body="count(DISTINCT x||i)"),
    "grouped": growing("x", LONG, body="max(n) FROM (SELECT count(*) n") + " GROUP BY x||i)",
    "replace": growing("x", LONG, body="count(replace(x, substr(x,1,240)||'b', ''))"),
    "instr": growing("x", LONG, body="sum(instr(x, substr(x,1,240)||'b'))"),
    "trim of many": growing("x", LONG, body="sum(length(trim(x||'z', replace(x,'a','b')||'a')))"),
    "ltrim of many": growing("x", LONG, body="sum(length(ltrim(x||'z', replace(x,'a','b')||'a')))"),
    "rtrim of many": growing("x", LONG, body="sum(length(rtrim('z'||x, replace(x,'a','b')||'a')))"),
    "like of many stars": growing("x", LONG, body="sum(x LIKE '%a%a%a%a%a%a%a%a%b')"),
    "like of blanks": growing("x", LONG, body="sum(x LIKE '%a_______________b')"),
    "glob of many stars": growing("x", LONG, body="sum(x GLOB '*a*a*a*a*a*a*a*a*b')"),
    "glob of sets": growing("x", LONG, body="sum(x GLOB '*[^b][^b][^b][^b]')"),
    "many patterns a row": f"SELECT count(*) FROM ({LONG}) t{ELSE} WHERE "
    + " OR ".join(f"x GLOB '*[^{i}][^b][^b][^b]'||(a.cost=-1)||'b'" for i in range(9)),
    "many patterns of a column": growing("x", LONG, body="count(*)")
    + " WHERE "
    + " OR ".join(["x GLOB '*[^b][^b][^b][^b]b'", "x LIKE '%a_______________b'"] * 20),
    "many trims of a column": growing("x", "SELECT 'b'||substr(x,9)||'a' FROM (" + LONG + ")")
    + " WHERE "
    + " OR ".join(f"trim(x,'{'c' * 100}ab') > {i}" for i in range(20)),
    "many searches of a column": growing("x", f"SELECT x||'b' FROM ({LONG})")
    + " WHERE "
    + " OR ".join([f"instr(x,'{'a' * 240}c')"] * 16),
    "many replacements in a column": growing("x", f"SELECT x||'b' FROM ({LONG})")
    + " WHERE "
    + " OR ".join([f"replace(x,'{'a' * 240}c','')=''"] * 15),
    "lower and upper": growing("x", LONG, body="count(lower(upper(lower(upper(x)))))"),
    "group_concat": f"SELECT group_concat(a.name || b.name) {CROSS}",
    "group_concat over frames": f"SELECT group_concat(a.name) OVER (ORDER BY a.cost ROWS 99 PRECEDING) {CROSS}",
    "sums over frames": f"SELECT sum(a.cost) OVER (ROWS BETWEEN CURRENT ROW AND 9999 FOLLOWING) {CROSS}",
    "least of frames": f"SELECT min(a.cost) OVER (ROWS BETWEEN CURRENT ROW AND 9999 FOLLOWING) {CROSS}",
    "many windows": "SELECT " + ",".join(f"ntile({i}) OVER (ORDER BY a.cost+{i})" for i in range(1, 31)) + CROSS,
    "a cross join": f"SELECT count(*) {CROSS}, trips e, trips f",
    "a cross join of 60 tables": "SELECT count(*) FROM " + ",".join(f"trips t{i}" for i in range(60)),
    "endless recursion": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n) SELECT count(*) FROM n",
    "many long columns": growing("x", LONG, body=",".join(["x||i"] * 32), most=1000),
    "many wide columns": growing("x", LONG, body=",".join(["'\U0001f600'||substr(x,9)"] * 32), most=1000),
    "many columns": "SELECT " + ",".join(["NULL"] * 900),
    "many columns sorted": f"SELECT DISTINCT {','.join(['NULL'] * 900)},a.cost*b.cost {CROSS}",
    "few columns sorted": f"SELECT count(*) FROM (SELECT DISTINCT {','.join(['NULL'] * 31)},a.cost*b.cost {CROSS})",
    "subqueries used twice": chain(20, "SELECT 1 FROM {0} a, {0} b"),
    "subqueries with odd names used twice": chain(
        16, "SELECT 1 FROM {0} a, {0} b", 'SELECT 1 FROM "!{0}" LIMIT 1', '"!{0}"'
    ),
    "subqueries behind comments": chain(16, "SELECT 1 FROM {0}/*)*/, {0}--(\n ").replace("AS (", "AS/*\n*/(/**/"),
    "subqueries used many times": chain(5, "SELECT 1 FROM " + ",".join(["{0}"] * 40)),
    "columns used twice": chain(22, "SELECT coalesce(x,x) FROM {0}", "SELECT x FROM c{0}"),
    "columns used many times": nested(4, f"SELECT coalesce({','.join('x' * 50)}) x FROM ({{0}})"),
    "columns by their text": nested(4, f'SELECT coalesce({",".join(["`x`"] * 50)}) "x" FROM ({{0}})'),
    "a long subquery used many times": chain(4, f"SELECT 1 FROM {','.join(['{0}'] * 40)}").replace(
        "SELECT age FROM staff", f"SELECT 1 WHERE 1 IN ({','.join('1' * 1500)})"
    ),
    "a long column used many times": nested(3, f"SELECT coalesce({','.join('x' * 16)}) x FROM ({{0}})").replace(
        "SELECT age x", f"SELECT age IN ({','.join('1' * 1800)}) x"
    ),
    "unions joined": "SELECT count(*) FROM " + ",".join(["(SELECT name FROM trips UNION ALL SELECT 1)"] * 18),
    "a long list": f"SELECT count(*) {CROSS} WHERE a.cost IN ({','.join(map(str, range(1000)))})",
    "many conditions": f"SELECT count(*) {CROSS} WHERE " + " OR ".join(f"a.cost={i}" for i in range(90)),
    "a deep expression": "SELECT " + "-(" * 2000 + "1" + ")" * 2000,
    "a deep case": "SELECT " + "CASE 1 WHEN 2 THEN 3 ELSE " * 80 + "1" + " END" * 80,
    "a long query": f"SELECT '{'x' * 10_000_000}'",
    "a long number": f"SELECT {'9' * 4900}",
    "json": f"SELECT count(*) FROM json_each('[{'1,' * 450}1]'){ELSE}",
    "json trees": f"SELECT count(*) FROM json_tree('{'[' * 450}{']' * 450}'){ELSE}",
    "zeroblob": "SELECT zeroblob(1000000000)",
    "printf": "SELECT printf('%.*c', 900000000, 'x')",
    "hex": "SELECT hex(zeroblob(400000000))",
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
        "VACUUM",
        "PRAGMA temp_store = FILE",
        "PRAGMA temp_store_directory = '.'",
        "PRAGMA hard_heap_limit = 1",
        "EXPLAIN PRAGMA query_only = OFF",
        "SELECT load_extension('x')",
        "SELECT * FROM pragma_table_info('staff')",
        "SELECT count(*) FROM pragma_database_list",
        "SELECT nstep FROM sqlite_stmt",
        "SELECT * FROM dbstat",
        "SELECT * FROM fts3tokenize('simple', 'a b')",
        "SELECT value FROM json_each('[1]')",
        "CREATE VIRTUAL TABLE x USING fts5(y)",
        "ANALYZE",
        "REINDEX",
        "SAVEPOINT x",
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

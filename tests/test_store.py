import copy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from treeagent.search.record import FORMAT, check_format, from_record
from treeagent.store import (
    CorruptShard,
    digest,
    read_as,
    remove_leftovers,
    shards,
    write_shard,
)
from treeagent.types import UserError

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    # line breaks and quotes inside a text could break a line-based format
    | st.text() | st.just('\n"\u2028'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(records=st.lists(st.dictionaries(st.text(), values), max_size=20))
def test_records_come_back_equal(records: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("trees")
    write_shard(folder, "collect", 0, records)
    assert list(read_as(dict, folder)) == records


def test_a_shard_cut_at_any_byte_is_named(tmp_path: Path) -> None:
    path = write_shard(tmp_path, "collect", 0, [{"n": n} for n in range(5)])
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(
            CorruptShard, match=r"line .* cut short or damaged: delete this file, and run what made it"
        ) as caught:
            list(read_as(dict, tmp_path))
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"n":0}\n{"n":\n', "line 2 is not JSON"),
        (b"[1]\n", "line 1 is no record"),
        (b'{}\n{"n"', "line 2 is cut short"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "collect-00000.jsonl.zst"
    path.write_bytes(zstandard.compress(text))
    with pytest.raises(CorruptShard, match=said):
        list(read_as(dict, tmp_path))


def even(record: dict[str, Any]) -> int:
    number: int = record["n"]
    if number % 2:
        raise UserError(f"{number} is odd: halve something else")
    return number // 2


def test_what_a_parser_refuses_is_named_with_its_place(tmp_path: Path) -> None:
    write_shard(tmp_path, "a", 0, [{"n": 2}])
    path = write_shard(tmp_path, "a", 1, [{"n": 4}, {"n": 5}, {"n": 6}])
    reading, given = read_as(even, tmp_path), list[int]()
    with pytest.raises(CorruptShard) as caught:
        given.extend(reading)
    assert str(caught.value) == f"{path}, line 2: 5 is odd: halve something else"
    assert given == [1, 2]


def test_a_tree_of_another_format_is_refused_by_file_version_and_fix(tmp_path: Path) -> None:
    path = write_shard(tmp_path, "collect", 7, [{"format": 1, "task": {"id": "a"}, "nodes": []}])
    for parse in (from_record, check_format):
        with pytest.raises(CorruptShard) as caught:
            list(read_as(parse, tmp_path))
        assert str(caught.value) == (
            f"{path}, line 1: tree format 1 is unknown: this version reads formats 3 and {FORMAT}; collect them anew, "
            "or read them with the treeagent that wrote them"
        )


WRITER = """
import itertools, os, sys
from pathlib import Path
from treeagent.store import write_shard
for index in itertools.count(int(sys.argv[2])):
    write_shard(Path(sys.argv[1]), "collect", index, ({"n": n, "noise": os.urandom(2000).hex()} for n in range(200)))
"""


def test_a_writer_killed_at_any_moment_leaves_whole_shards_only(tmp_path: Path) -> None:
    leftovers = 0
    for attempt in range(6):
        written = len(shards(tmp_path))
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(written)])
        deadline = time.monotonic() + 30
        while len(shards(tmp_path)) == written and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.007 * attempt)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        leftovers += len(list(tmp_path.glob(".*")))
        assert len(shards(tmp_path)) > written
        assert sum(1 for _ in read_as(dict, tmp_path)) == 200 * len(shards(tmp_path))
    assert leftovers, "no kill fell into a write: the test has lost its aim"
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == shards(tmp_path)


def tree(task: str, seed: int = 0) -> dict[str, Any]:
    edge = {"text": "look", "token_ids": [1, 2], "visits": 3, "value_sum": 1.5, "reward": 0.0}
    node = {"parent": -1, "edge": -1, "value": 0.25, "edges": [edge]}
    return {"task": {"id": task}, "seed": seed, "nodes": [node], "budget": {"seconds": 1.0}}


def test_the_digest_sees_one_visit_but_not_the_time() -> None:
    plain, slower = tree("a"), tree("a")
    slower["budget"]["seconds"] = 9.0
    assert digest([plain]) == digest([slower])
    for key, value in [("visits", 4), ("value_sum", 1.5000001), ("text", "wait"), ("token_ids", [1, 3]), ("reward", 1)]:
        other = copy.deepcopy(plain)
        other["nodes"][0]["edges"][0][key] = value
        assert digest([plain]) != digest([other]), key
    assert digest([plain]) != digest([tree("a", 1)]) != digest([])
    assert digest([plain]) != digest([plain, plain])

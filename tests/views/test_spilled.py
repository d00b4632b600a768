"""Rows on disk behave like the same rows in a list."""

import pickle
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeagent.views.spilled import Joined, Picked, Spilled, where
from treeagent.views.tokens import TokenRow


@given(st.lists(st.lists(st.integers(0, 70_000), max_size=5)), st.data())
def test_rows_come_back_in_any_order(ids: list[list[int]], data: st.DataObject) -> None:
    rows = [TokenRow(f"task-{place}", tuple(each), (True,) * len(each)) for place, each in enumerate(ids)]
    spilled = Spilled[TokenRow]()
    for row in rows:
        spilled.append(row)
        assert spilled[-1] == row  # also while rows are being added
    assert list(spilled) == rows and list(spilled[1:4]) == rows[1:4]
    places = data.draw(st.permutations(range(len(rows))))
    assert list(Picked(spilled, array("q", places))) == [rows[place] for place in places]
    long = where(spilled, lambda row: len(row.token_ids) > 2)
    assert list(long) == [row for row in rows if len(row.token_ids) > 2]
    assert list(long[:2]) == list(long)[:2]
    with pytest.raises(IndexError):
        spilled[len(rows)]


@given(st.lists(st.lists(st.integers()), max_size=4))
def test_rows_in_named_files_can_be_read_by_other_processes(
    tmp_path_factory: pytest.TempPathFactory, contents: list[list[int]]
) -> None:
    folder, parts = tmp_path_factory.mktemp("rows"), list[Spilled[int]]()
    for number, content in enumerate(contents):
        part = Spilled[int](folder, f"rows-{number}")
        for row in content:
            part.append(row)
        parts.append(pickle.loads(pickle.dumps(part)))
    whole = [row for content in contents for row in content]
    joined = Joined(parts)
    assert list(joined) == whole and list(joined[1:3]) == whole[1:3] and len(joined) == len(whole)
    assert [joined[-1 - place] for place in range(len(whole))] == whole[::-1]
    with pytest.raises(IndexError):
        joined[len(whole)]


def test_the_file_has_no_name(tmp_path: Path) -> None:
    rows = Spilled[int](tmp_path)
    rows.append(1)
    assert not list(tmp_path.iterdir()) and rows[0] == 1

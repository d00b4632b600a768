"""Rows on disk behave like the same rows in a list."""

from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeagent.views.spilled import Picked, Spilled, where
from treeagent.views.tokens import TokenRow


@given(st.lists(st.lists(st.integers(0, 70_000), max_size=5)), st.data())
def test_rows_come_back_in_any_order(ids: list[list[int]], data: st.DataObject) -> None:
    rows = [TokenRow(f"task-{place}", tuple(each), (True,) * len(each)) for place, each in enumerate(ids)]
    spilled = Spilled[TokenRow]()
    for row in rows:
        spilled.append(row)
        assert spilled[-1] == row  # also while rows are being added
    assert list(spilled) == rows and spilled[1:4] == rows[1:4]
    places = data.draw(st.permutations(range(len(rows))))
    assert list(Picked(spilled, array("q", places))) == [rows[place] for place in places]
    long = where(spilled, lambda row: len(row.token_ids) > 2)
    assert list(long) == [row for row in rows if len(row.token_ids) > 2]
    assert list(long[:2]) == list(long)[:2]
    with pytest.raises(IndexError):
        spilled[len(rows)]


def test_the_file_has_no_name(tmp_path: Path) -> None:
    rows = Spilled[int](tmp_path)
    rows.append(1)
    assert not list(tmp_path.iterdir()) and rows[0] == 1

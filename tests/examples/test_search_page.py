"""The program on the page about search runs, and finds the plan."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "search.md"


def test_the_loop_on_the_page_prints_the_shortest_plan(capsys: pytest.CaptureFixture[str]) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {})
    assert capsys.readouterr().out == "add 3 -> double -> add 3 -> double\n"

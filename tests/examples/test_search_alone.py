"""The example that README quotes runs, and finds the plan."""

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "search_alone.py"


def test_the_example_prints_the_shortest_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """1 + 3 = 4, 4 * 2 = 8, 8 + 3 = 11, 11 * 2 = 22; no other plan has so few moves."""
    runpy.run_path(str(EXAMPLE))
    assert capsys.readouterr().out == "add 3 -> double -> add 3 -> double\n"

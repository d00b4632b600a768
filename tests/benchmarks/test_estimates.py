"""Means over seeds and paired differences, against values by hand."""

import math

import pytest

from benchmarks.estimates import difference, estimate, mean
from benchmarks.record import Machine, Result, Row, Session

SESSION = Session("abc", False, "python -m benchmarks.toy", Machine("Xeon", 2, 8.0), {}, "2026-01-01")


def result(*rows: Row) -> Result:
    return Result("toy", "Which arm?", {}, (SESSION,), rows)


def test_the_interval_is_students() -> None:
    found = estimate([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.302653 / math.sqrt(3))  # t(0.975, 2) · s / √n with s = 1
    assert (found.low, found.high) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-5)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [([1.0, 1.1, 0.9], "more"), ([-1.0, -1.1, -0.9], "less"), ([1.0, -1.0, 0.5], "level"), ([0.0, 0.0], "level")],
)
def test_a_difference_is_level_where_the_interval_includes_0(values: list[float], verdict: str) -> None:
    assert estimate(values).verdict == verdict


def test_differences_are_paired_by_seed() -> None:
    """Seeds differ by 50 points, but the arms differ by 25 in each seed: the paired interval has no width."""
    found = result(
        Row("search", 0, "s", solved="1110", first_task=0),
        Row("search", 1, "s", solved="1000", first_task=4),
        Row("greedy", 1, "g", solved="0000", first_task=4),
        Row("greedy", 0, "g", solved="1100", first_task=0),
        Row("greedy", 2, "g", solved="1111", first_task=8),
    )
    gain = difference(found, "search", "greedy")
    assert (gain.mean, gain.half, gain.seeds, gain.verdict) == (25.0, 0.0, 2, "more")
    assert mean(found, "search").values == (75.0, 25.0)
    assert mean(found, "greedy").seeds == 3

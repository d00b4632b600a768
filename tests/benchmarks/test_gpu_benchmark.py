"""The GPU benchmark, run on a CPU."""

import pytest

from benchmarks.gpu import SIZES, Place, packed, refusal, update

REHEARSAL = Place("cpu", SIZES["tiny"], model="")


@pytest.mark.slow
def test_updates_and_packs_are_measured_anywhere() -> None:
    assert update(REHEARSAL)["tokens / s"] > 0
    assert packed(REHEARSAL)["ratio"] > 1


def test_parts_that_need_a_gpu_say_so() -> None:
    assert all(refusal(part, "cpu") for part in ("parallel", "round"))
    assert not any(refusal(part, "cpu") for part in ("update", "packed"))

"""The lag benchmark: its arms differ only in the lag, and its environment waits."""

import time
from pathlib import Path

import pytest

from benchmarks.lag import ARMS, Rounds, SlowStore, SlowStoreOptions
from treeagent.config import config_difference
from treeagent.types import Split


def test_the_arms_differ_in_the_lag_and_what_follows_from_it() -> None:
    rounds = Rounds(11, Path("out"), Path("start"), seconds=0.1)
    first, *others = map(rounds.config, ARMS)
    found = [config_difference(first, other) for other in others]
    assert found == [["adapt.lag"], ["adapt.lag", "adapt.refresh"], ["adapt.lag", "adapt.rounds"]]
    assert first.evaluate.places == range(1320, 1440)


@pytest.mark.parametrize(("split", "waits"), [("train", [0.25]), ("validation", [0.25]), ("test", [])])
def test_each_step_waits_unless_it_is_not_timed(
    split: Split, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    env = SlowStore(SlowStoreOptions(products=100, seconds=0.25))
    [task] = env.tasks(split, 1)
    env.reset(options={"task": task})
    env.step("search[shirt]")
    assert slept == waits

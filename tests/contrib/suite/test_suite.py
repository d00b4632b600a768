"""The table of robustness under disturbances."""

from pathlib import Path

import orjson
import pytest
from command import CONFIG, treeagent

from treeagent.contrib.suite.report import paired_difference


def test_a_difference_is_paired_by_task() -> None:
    # Of four tasks two are lost and none is won, so the mean is -2/4. With 0.5 more of each pair of outcomes, 2.5 of
    # six tasks are lost and 0.5 are won: the interval is -2/6 ± 1.96 · √((3/6 - (2/6)²) / 6) = -0.3333 ± 0.4990.
    found = paired_difference([False, False, True, False], [True, True, True, False])
    assert found == pytest.approx((-50, -83.23, 16.57), abs=0.01)


def test_the_interval_of_a_difference_has_a_width_even_if_all_tasks_agree() -> None:
    # 4.5 of six tasks are won and 0.5 are lost: 4/6 ± 1.96 · √((5/6 - (4/6)²) / 6) = 0.6667 ± 0.4990.
    assert paired_difference([True] * 4, [False] * 4) == pytest.approx((100, 16.77, 100), abs=0.01)


def test_the_same_tasks_are_played_under_the_chosen_disturbances(finished_run: Path, tmp_path: Path) -> None:
    few = ["evaluate.tasks=2", 'evaluate.modes=["greedy"]', "workers=1"]
    kinds = ["--only", "noise", "--only", "injection"]
    base, out = finished_run / "checkpoints" / "base", tmp_path / "run"
    done = treeagent("suite", base, "--config", CONFIG, "--out", out, *kinds, *few)
    assert done.returncode == 0, done.stderr
    for name in ("plain", "noise", "injection"):
        [row] = orjson.loads((out / name / "results.json").read_bytes())
        assert len(row["solved"]) == 2 and name in done.stdout
    refused = treeagent("suite", base, "--config", CONFIG, "--out", out, "--only", "rain", *few)
    assert refused.returncode == 2 and "--only is 'rain'" in refused.stderr

"""The table of robustness under disturbances."""

from pathlib import Path

import orjson
import pytest
from command import CONFIG, treeagent

from treeagent.contrib.suite.report import difference, paired_difference


def test_a_difference_is_paired_by_task() -> None:
    # Of four tasks two are lost and none is won, so the mean is -2/4. With 0.5 more of each pair of outcomes, 2.5 of
    # six tasks are lost and 0.5 are won: the interval is -2/6 ± 1.96 · √((3/6 - (2/6)²) / 6) = -0.3333 ± 0.4990.
    found = paired_difference([False, False, True, False], [True, True, True, False])
    assert found == pytest.approx((-50, -83.23, 16.57), abs=0.01)
    assert difference({"solved": "0010"}, {"solved": "1110"}) == "-50.0 [-83.2, +16.6]"


def test_the_interval_of_a_difference_has_a_width_even_if_all_tasks_agree() -> None:
    # 4.5 of six tasks are won and 0.5 are lost: 4/6 ± 1.96 · √((5/6 - (4/6)²) / 6) = 0.6667 ± 0.4990.
    assert paired_difference([True] * 4, [False] * 4) == pytest.approx((100, 16.77, 100), abs=0.01)


def test_only_the_chosen_disturbances_are_played(finished_run: Path, tmp_path: Path) -> None:
    few = ["evaluate.tasks=2", 'evaluate.modes=["greedy"]', "workers=1", 'evaluate.suite=["noise"]']
    base = finished_run / "checkpoints" / "base"
    done = treeagent("eval", base, "--config", CONFIG, "--out", tmp_path / "run", *few)
    assert done.returncode == 0, done.stderr
    rows = orjson.loads((tmp_path / "run" / "suite.json").read_bytes())
    assert [row.get("under") for row in rows] == [None, "noise"]


def test_eval_plays_the_same_tasks_under_each_disturbance(finished_run: Path, tmp_path: Path) -> None:
    few = ["evaluate.tasks=2", 'evaluate.modes=["greedy"]', "workers=1"]
    base = finished_run / "checkpoints" / "base"
    done = treeagent("eval", base, "--config", CONFIG, "--out", tmp_path / "run", "--suite", "full", *few)
    assert done.returncode == 0, done.stderr
    plain, *harder = orjson.loads((tmp_path / "run" / "suite.json").read_bytes())
    [alone] = orjson.loads((tmp_path / "run" / "results.json").read_bytes())
    assert plain == alone and "under" not in plain
    assert {"noise", "failing tools", "injection", "reworded task", "renamed tools"} < {row["under"] for row in harder}
    assert all(len(row["solved"]) == 2 for row in harder)
    assert "injection" in done.stdout

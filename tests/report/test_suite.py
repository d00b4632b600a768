"""The table of robustness under disturbances."""

from pathlib import Path

import orjson
import pytest
from command import CONFIG, treeagent

from treeagent.report.suite import difference


def test_a_difference_is_paired_by_task() -> None:
    # Of four tasks two are lost and none is won. The differences are -100, -100, 0, 0 with mean -50 and standard
    # deviation 57.735, so half of the interval is 1.96 · 57.735 / 2 = 56.58.
    mean, half = difference({"solved": "0010"}, {"solved": "1110"})
    assert mean == -50 and half == pytest.approx(56.58, abs=0.01)


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

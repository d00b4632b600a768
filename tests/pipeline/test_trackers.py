"""Logged metrics reach the trackers that a run names."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from treeagent.config import RunConfig
from treeagent.pipeline.folder import Run, RunError
from treeagent.pipeline.opening import require_trackers, tracked


def test_metrics_go_to_tensorboard_by_stage_and_step(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", RunConfig(trackers=("tensorboard",)), resume=False) as run:
        with tracked(run):
            run.log("dpo", {"step": 5, "loss": 0.5})
            run.log("dpo", {"step": 10, "loss": 0.25})
        run.log("dpo", {"step": 15, "loss": 0.0})  # the tracker is closed
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("dpo/loss")] == [(5, 0.5), (10, 0.25)]
    assert [row["loss"] for row in run.metrics()] == [0.5, 0.25, 0.0]


def test_a_tracker_that_is_not_installed_is_named() -> None:
    with pytest.raises(RunError, match=r"wandb.*pip install 'treeagent\[wandb\]'"):
        require_trackers(RunConfig(trackers=("wandb",)))

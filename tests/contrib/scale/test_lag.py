"""Rounds whose updates run beside the next search."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from command import CONFIG, PROGRAM

from treeagent.config import load_config
from treeagent.contrib.scale.lag import train_with_lag
from treeagent.pipeline.folder import Run
from treeagent.pipeline.trees import stored_trees

LAGGING = [
    'adapt.methods=["grpo"]', "adapt.replay=0", "workers=1", "collect.tasks=4", "search.limits.simulations=8",
    "update.validation_tasks=2", "update.grpo.max_steps=1", "evaluate.tasks=2", 'evaluate.modes=["greedy"]',
]  # fmt: skip


def test_each_round_searches_with_the_last_policy_but_one(finished_run: Path, tmp_path: Path) -> None:
    out, base = tmp_path / "run", finished_run / "checkpoints" / "base"
    train_with_lag(load_config(CONFIG, LAGGING), out, base)
    policies = [{tree.policy for tree in stored_trees(out / "trees", f"collect-{number}")} for number in (1, 2, 3)]
    assert policies == [{str(base.resolve())}, {str(base.resolve())}, {"./checkpoints/round-1-grpo"}]
    lagging = Run.open(out)
    assert lagging.recorded_checkpoint("round-3-grpo") == out / "checkpoints" / "round-2-grpo"
    assert list(lagging.stages()).index("collect-2") < list(lagging.stages()).index("alarms-1")


@pytest.mark.slow
def test_ctrl_c_ends_a_search_and_the_updates_beside_it(finished_run: Path, tmp_path: Path) -> None:
    out, warm = tmp_path / "run", finished_run / "checkpoints" / "base"
    patient = ["adapt.rounds=2", 'adapt.methods=["rft"]', "update.rft.max_steps=2000", "workers=1"]
    process = subprocess.Popen(
        [PROGRAM, "lag", warm, "--config", CONFIG, "--out", out, *patient, "collect.tasks=160"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def beside() -> bool:
        """Whether an update of the first round and the search of the second are both under way."""
        if not (out / "metrics.jsonl").exists():
            return False
        return {"round-1-rft", "collect-2"} <= {row["stage"] for row in Run.open(out).metrics()}

    deadline = time.monotonic() + 300
    while not beside():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "--resume" in said and "Traceback" not in said
    assert not Run.open(out).is_done("round-1-rft") and not Run.open(out).is_done("collect-2")
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("a process is left")

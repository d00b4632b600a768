"""A run killed at random moments ends with the same trees, weights and results as an undisturbed run."""

import hashlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from command import CONFIG, PROGRAM

from treeagent.pipeline.folder import Run
from treeagent.store import digest, read_as

KILLS = 20
# Save a checkpoint at every step, so that a kill during training has something to resume from.
SETTINGS = ["training.save_every=1", "workers=2"]
ROUNDS = ["adapt.rounds=3", "adapt.replay=1"]
COMMANDS = {"quickstart": [], "train": ROUNDS}


def command(name: str, out: Path) -> list[str | Path]:
    return [PROGRAM, name.split()[0], "--config", CONFIG, "--out", out, "--resume", *SETTINGS, *COMMANDS[name]]


def outcome(run: Path) -> dict[str, object]:
    """Everything that a run ends with, without times."""
    rows = json.loads((run / "results.json").read_text())
    weights = {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((run / "checkpoints").rglob("*.safetensors"))
    }
    metrics = [
        {key: value for key, value in row.items() if "seconds" not in key and "per_second" not in key}
        for row in Run.open(run).metrics()
        if row["stage"] in ("adapt", "warm_start", "value")
    ]
    return {
        "trees": digest(read_as(dict, run / "trees")),
        "metrics": sorted(metrics, key=lambda row: (row["stage"], row["step"])),
        "weights": weights,
        "results": [{key: value for key, value in row.items() if key != "seconds"} for row in rows],
    }


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process and its workers at once, as a power failure would."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_random_moments_it_ends_the_same(tmp_path: Path, name: str) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    started = time.monotonic()
    subprocess.run(command(name, whole), check=True, env=environment, capture_output=True)
    length = time.monotonic() - started
    rng, kills, finished = random.Random(0), 0, False
    while not finished and kills < KILLS:
        process = subprocess.Popen(
            command(name, cut),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            finished = process.wait(timeout=rng.uniform(0.05, 0.4) * length) == 0
        except subprocess.TimeoutExpired:
            kill(process)
            kills += 1
    subprocess.run(command(name, cut), check=True, env=environment, capture_output=True)
    assert kills >= 3
    assert outcome(cut) == outcome(whole)

"""The whole path on a small scale: one run by two commands, and what a user then does with it."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from command import CONFIG, PROGRAM, treeagent
from transformers import AutoModelForCausalLM, AutoTokenizer

from treeagent.store import digest, read_as, shards


def collected(run: Path) -> str:
    return digest(read_as(dict, run / "trees", "collect"))


@pytest.fixture
def run(finished_run: Path) -> Path:
    return finished_run


def test_search_is_measured_on_the_base_and_the_best_update_and_each_update_without(run: Path) -> None:
    rows = json.loads((run / "results.json").read_text())
    modes = ("greedy", "best_of_n", "mcts")
    updated = [(policy, "greedy") for policy in ("rft", "distil", "dpo", "grpo")]
    *shown, best = [(row["policy"], row["mode"]) for row in rows]
    assert shown == [*(("base", mode) for mode in modes), *updated]
    assert best[1] == "mcts" and (best[0], "greedy") in updated
    for row in rows:
        assert row["tasks"] == 4 and row["errors"] == 0
        assert 0 <= row["success_low"] <= row["success"] <= row["success_high"] <= 1
        assert row["environment_steps"] > 0 and row["generated_tokens"] > 0 and row["seconds"] > 0
    greedy, best_of_n, mcts = rows[:3]
    assert greedy["generated_tokens"] < best_of_n["generated_tokens"]
    assert greedy["environment_steps"] < mcts["environment_steps"]


def test_the_run_is_complete(run: Path) -> None:
    assert "<html" in (run / "report.html").read_text()
    stages = {json.loads(line)["stage"] for line in (run / "metrics.jsonl").read_text().splitlines()}
    assert {"warm_start", "value", "rft", "distil", "dpo", "grpo"} <= stages
    assert len(shards(run / "trees", "collect")) == 2
    for name in ("base", "rft", "distil", "dpo", "grpo"):
        model = AutoModelForCausalLM.from_pretrained(run / "checkpoints" / name)
        tokenizer = AutoTokenizer.from_pretrained(run / "checkpoints" / name)
        assert model.config.vocab_size == len(tokenizer)
        assert (run / "checkpoints" / name / "value_head").is_dir()
    assert not list((run / "checkpoints").glob(".*"))


def test_an_interrupted_collection_says_how_to_go_on_and_resumes_to_the_same_trees(run: Path, tmp_path: Path) -> None:
    """Two workers begin what one ends, and the trees are those of a run with one worker."""
    out = tmp_path / "interrupted"
    command: list[str | Path] = ["collect", run / "checkpoints" / "warm", "--config", CONFIG, "--out", out, "--resume"]
    process = subprocess.Popen(
        [PROGRAM, *command, "workers=2"], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 200
    while not shards(out / "trees") and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
    _, said = process.communicate(timeout=200)
    assert process.returncode == 130, said
    assert "--resume" in said
    assert "Traceback" not in said
    assert len(shards(out / "trees")) >= 1
    done = treeagent(*command, "workers=1")
    assert done.returncode == 0, done.stderr
    assert collected(out) == collected(run)

"""Whole programs through the doors: a proxy that is killed and goes on, an agent that learns."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from command import treeagent
from toy_llama import tokenizer

from treeagent.agent.checkpoint import Checkpoint, save_checkpoint
from treeagent.generators.config import ScratchConfig
from treeagent.generators.scratch import random_model
from treeagent.pipeline.trees import stored_trees

ROOT = Path(__file__).parents[3]
PROGRAM = (sys.executable, "-m", "treeagent")
SETTINGS = ("policy.format=tools", "policy.max_new_tokens=200", "environment.name=frozenlake", "workers=1")
SHORT = ("update.validation_tasks=1", "update.rft.max_steps=1", "update.grpo.max_steps=1")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def started(checkpoint: Path, run: Path, *more: str) -> tuple[subprocess.Popen[bytes], str]:
    port = free_port()
    command = [*PROGRAM, "proxy", checkpoint, "--out", run, "--port", str(port), "--group", "3", *more, *SETTINGS]
    process = subprocess.Popen([str(each) for each in command], cwd=ROOT)
    for _ in range(600):
        with suppress(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/v1/models").raise_for_status()
            break
        time.sleep(0.2)
    return process, f"http://127.0.0.1:{port}"


def turn(address: str, name: str, messages: list[Any]) -> str:
    body = {"model": "policy", "messages": messages}
    answer = httpx.post(f"{address}/e/{name}/v1/chat/completions", json=body, timeout=60).json()
    messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or ""})
    messages.append({"role": "user", "content": "go on"})
    return str(answer["id"])


@pytest.mark.slow
def test_a_killed_proxy_goes_on_and_its_run_is_a_run_like_any_other(tmp_path: Path) -> None:
    model = random_model(tokenizer(), ScratchConfig(vocabulary=320, layers=2, width=32, heads=2, context=4096), 0)
    checkpoint = save_checkpoint(Checkpoint(model, tokenizer()), tmp_path / "policy")
    run, plays, ids = tmp_path / "run", dict[str, list[Any]](), dict[str, str]()
    process, address = started(checkpoint, run)
    for task in range(3):
        for number in range(3):
            name = f"t{task}:{number}"
            plays[name] = [{"role": "user", "content": f"task {task}"}]
            turn(address, name, plays[name])
            ids[name] = turn(address, name, plays[name])
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process, address = started(checkpoint, run, "--resume")
    for name, messages in plays.items():
        assert turn(address, name, messages[:-2]) == ids[name]  # what was answered before the kill
        turn(address, name, messages)
        reward = {"reward": float(name[-1] != "2")}
        httpx.post(f"{address}/e/{name}/v1/outcomes", json=reward).raise_for_status()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) in (0, 128 + signal.SIGTERM)
    trees = list(stored_trees(run / "trees"))
    assert len(trees) == 3 and all(tree.budget.simulations == 3 for tree in trees)
    assert all(len(path) == 3 for tree in trees for path, node in tree.walk() if node.terminated)
    commands: list[list[str | Path]] = [["show", run], ["export", run, "--view", "pairs", "--out", tmp_path / "pairs"]]
    for command in commands:
        done = treeagent(*command)
        assert done.returncode == 0, done.stderr
    for method in ("rft", "grpo"):
        done = treeagent("update", method, checkpoint, "--out", tmp_path / method, "--trees", run, *SHORT)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / method / "checkpoints" / method / "config.json").is_file()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_agent_that_knows_nothing_of_treeagent_learns(tmp_path: Path) -> None:
    """The example's program on the store, from an agent that has seen few demonstrations."""
    warm = {"episodes": 4000, "noise": 0.3, "training.optimiser": '"muon"', "training.learning_rate": 4e-3,
            "training.warmup_steps": 30, "training.max_steps": 450}  # fmt: skip
    few = ("collect.tasks=8", "evaluate.tasks=1", "update.rft.max_steps=1", "update.validation_tasks=40")
    more = ("policy.temperature=0.7", "policy.scratch.width=96", "update.imitation.min_return=1.0", "workers=1")
    settings = [f"warm_start.{name}={value}" for name, value in warm.items()]
    run = tmp_path / "run"
    done = treeagent("quickstart", "--config", "debug", "--out", run, *settings, *few, *more, 'update.methods=["rft"]')
    assert done.returncode == 0, done.stderr
    program = [sys.executable, "-m", "examples.train_any_agent", str(run / "checkpoints/warm"), str(tmp_path / "out")]
    learning = ("update.rft.max_steps=100", "update.rft.learning_rate=1e-3", "update.rft.validate_every=50")
    said = subprocess.run([*program, "rft", *learning], cwd=ROOT, capture_output=True, text=True, check=True)
    before, after = map(float, said.stdout.split()[-2:])
    assert after > before

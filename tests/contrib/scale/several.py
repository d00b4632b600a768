"""Programs that several processes run to test how they share their work, and checks of what they leave behind."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from tiny import make_model, make_tokenizer

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
MODELS = ROOT / "configs" / "models"
LAUNCH = ("-m", "accelerate.commands.launch", "--num_processes=2", "--num_machines=1", "--main_process_port=0")
LEARNERS = ("sft", "distil", "dpo", "lora", "grpo", "grpo-by-rows", "validated")
"""The learners that steps_program.py runs."""
ALONE: Sequence[str] = ()
# "multi_gpu" means processes started by torch, also on a CPU, where they communicate by gloo.
WHOLE = (*LAUNCH, "--multi_gpu", "--mixed_precision=no", "--dynamo_backend=no")


def by(name: str, folder: Path) -> Sequence[str]:
    """Arguments that start two processes on a CPU by a file of configs/models."""
    file = folder / name
    file.write_text(yaml.safe_dump(yaml.safe_load((MODELS / name).read_text()) | {"use_cpu": True}))
    return (*LAUNCH, f"--config_file={file}", "--gradient_accumulation_steps=1", "--gradient_clipping=1.0")


def start(how: Sequence[str], program: str, folder: Path, *arguments: str) -> int:
    """Run a program to its end. Returns its exit status."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "learners"), str(ROOT)]),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, *how, str(HERE / program), "2" if how else "1", str(folder), *arguments]
    return subprocess.run(command, env=environment, check=False, timeout=280).returncode


def steps(folder: Path, name: str, how: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The final state of the processes of steps_program.py."""
    out = folder / name
    out.mkdir()
    assert start(how, "steps_program.py", out) == 0
    return {f"{rank} of {name}": torch.load(out / f"{rank}.pt") for rank in range(2 if how else 1)}


def updates(one: Path, two: Path, how: Sequence[str]) -> Mapping[int, Path]:
    """Run updates_program.py in one process, and in two that are killed halfway and started again. Returns the folders
    by number of processes."""
    for folder in (one, two):
        make_model().save_pretrained(folder / "base")
        make_tokenizer().save_pretrained(folder / "base")
    assert start(ALONE, "updates_program.py", one, "whole") == 0
    assert start(how, "updates_program.py", two, "killed") != 0
    assert (two / "killed" / "checkpoint-5" / "trainer_state.json").is_file()
    assert start(how, "updates_program.py", two, "whole") == 0
    return {1: one, 2: two}


def told(folder: Path, rank: int = 0) -> dict[str, Any]:
    """What a process of updates_program.py reported."""
    said: dict[str, Any] = torch.load(folder / f"told-{rank}.pt")
    return said

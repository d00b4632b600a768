"""An update in as many processes as its configuration wants: in this one, or in some that ``accelerate launch`` starts.

A started process is ``python -m treeagent.train_job FOLDER``. It finds its job in the folder and tells there what
happens, a JSON object a line. It ends when the process that started the update does: no update outlives its run.
"""

import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType
from accelerate.commands.config.config_args import load_config_from_file

from treeagent.config import UpdateConfig
from treeagent.jobs import TrainJob, train_policy
from treeagent.learners.watch import TrainingDiverged
from treeagent.telemetry import Emit, Event
from treeagent.types import Refused

_JOB, _TOLD = "job.pickle", "told.jsonl"
_LOG = "processes.log"
_SHARDING = ("DEEPSPEED", "FSDP", "MEGATRON_LM")
"""Accelerate's names of what an update cannot be trained by."""
_EXPECTED = {"refused": Refused, "diverged": TrainingDiverged}
"""By the name under which a process tells them, what an update may end with."""


class LaunchError(RuntimeError):
    """The processes of an update ended without a word."""


def train(job: TrainJob, emit: Emit) -> dict[str, Any]:
    """``train_policy`` in ``update.processes`` processes.

    Raises:
        LaunchError: they cannot be started, or broke down.
    """
    if job.config.update.processes == 1:
        return train_policy(job, emit)
    job.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="treeagent-") as name:
        folder = Path(name)
        (folder / _JOB).write_bytes(pickle.dumps(job))
        (folder / _TOLD).touch()
        for what, said in _run(_command(job.config.update, folder), folder, job.scratch / _LOG):
            if what == "facts":
                return dict(said)
            if what in _EXPECTED:
                raise _EXPECTED[what](said)
            emit(Event(**said))
    raise LaunchError(
        f"the {job.config.update.processes} processes of update {job.out.name} broke down: {job.scratch / _LOG} tells "
        "why; what they saved is kept for --resume"
    )


def _command(update: UpdateConfig, folder: Path) -> list[str]:
    given = update.accelerate_config
    if given is not None:
        if not Path(given).is_file():
            raise Refused(f"update.accelerate_config {given} is no file: make it by accelerate config")
        kind = DistributedType(load_config_from_file(given).distributed_type).value
        if kind in _SHARDING:
            raise Refused(
                f"update.accelerate_config {given} is of type {kind}, which shares a model's weights or gradients out, "
                "while every process of an update holds them whole: choose plain data-parallel training, with "
                "update.lora where memory is short"
            )
        how = [f"--config_file={given}"]
    else:
        # "multi_gpu" means processes that torch starts, on a CPU too; they talk by gloo there.
        how = ["--multi_gpu", "--mixed_precision=no", "--dynamo_backend=no"]
    how += [f"--num_processes={update.processes}", "--num_machines=1", "--main_process_port=0"]  # 0: any that is free
    return [sys.executable, "-m", "accelerate.commands.launch", *how, "--module", "treeagent.train_job", str(folder)]


def _run(command: list[str], folder: Path, log: Path) -> Iterator[tuple[str, Any]]:
    """What the leading process tells while the command runs: "event", or, as the last, an outcome."""
    with (
        log.open("wb") as output,
        (folder / _TOLD).open() as told,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output) as process,
    ):
        try:
            ended, rest = False, ""
            while not ended:
                ended = process.poll() is not None  # asked first: what is told until then is read below
                *lines, rest = (rest + told.read()).split("\n")
                for line in lines:
                    yield from json.loads(line).items()
                time.sleep(0.1)
        finally:
            process.terminate()


def main() -> None:
    """One of the processes."""
    threading.Thread(target=_end_with_starter, daemon=True).start()
    torch.set_num_threads(1)  # as in every worker
    folder, leads = Path(sys.argv[1]), os.environ["RANK"] == "0"
    job = pickle.loads((folder / _JOB).read_bytes())
    with (folder / _TOLD).open("a", buffering=1) as told:

        def tell(what: str, said: Any) -> None:
            if leads:
                told.write(json.dumps({what: said}) + "\n")

        try:
            tell("facts", train_policy(job, lambda event: tell("event", asdict(event)), leads=leads))
        except tuple(_EXPECTED.values()) as error:
            tell(next(what for what, kind in _EXPECTED.items() if isinstance(error, kind)), str(error))
            # The first process to fail takes the others with it: it must be the one that has told why.
            sys.exit(1 if leads else 0)


def _end_with_starter() -> None:
    """Every process inherits the reading end of a pipe that nobody writes to; it closes with its other end."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()

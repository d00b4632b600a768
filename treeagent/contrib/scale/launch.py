"""Updates in several processes that train together, started by ``accelerate launch`` on this machine.

Each process runs ``python -m treeagent.contrib.scale.launch FOLDER``. It reads its job from the folder and writes
messages to a file of its own there, one JSON object per line: the leading process its events and its result, every
process an error. A process ends when the process that started it ends.
"""

import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, TypeVar

import torch
from accelerate import PartialState
from peft import PeftModel
from torch import distributed
from transformers import PreTrainedModel

from treeagent.agent.checkpoint import Checkpoint, save_checkpoint
from treeagent.config import RunConfig
from treeagent.contrib.scale.settings import Scale
from treeagent.contrib.scale.sharding import allow_cpu, run_on_leader, sharing, whole_weights
from treeagent.pipeline.metrics import Emit, Event
from treeagent.pipeline.processes import end_shared_workers
from treeagent.pipeline.recipes import find_recipe
from treeagent.pipeline.update import TrainJob, train_policy
from treeagent.types import NothingToLearn, UserError, WorkerLost

Model = PreTrainedModel | PeftModel
T = TypeVar("T")
_JOB = "job.pickle"
Work = Callable[[Any, Emit], dict[str, Any]]
"""Function that every process runs: (job, function to send events with) → result."""
_WAIT = timedelta(minutes=30)
"""How long a process waits for the slowest one; the default of transformers."""
_EXPECTED = {"nothing": NothingToLearn, "refused": UserError}
"""Errors that a process reports and that the starting process raises again, by name. The first class that matches is
used."""


def train_together(
    scale: Scale, jobs: Sequence[TrainJob], config: RunConfig, emit: Emit
) -> Iterator[tuple[TrainJob, dict[str, Any]]]:
    """Run updates one after the other, each in ``scale.processes`` processes. Yields each with its facts. The workers
    of the run are ended first, because the processes need their GPUs."""
    end_shared_workers()
    for job in jobs:
        job.scratch.mkdir(parents=True, exist_ok=True)
        yield job, launch(scale, train_job, job, job.scratch / "processes.log", emit)


def train_job(job: TrainJob, emit: Emit) -> dict[str, Any]:
    """``train_policy`` in one of the processes. Each has its own GPU. With FSDP the weights are first loaded off the
    GPU, since one GPU may not hold them."""
    config = job.config
    training = replace(config.training, precision=config.precision(config.policy))  # which the device decides
    device = config.policy.device_map if config.policy.on_cpu else None
    if not config.policy.on_cpu and not sharing():
        device = f"cuda:{os.environ['LOCAL_RANK']}"
    policy = replace(config.policy, device_map=device)
    return train_policy(replace(job, config=replace(config, training=training, policy=policy)), emit, lead, save_whole)


def launch(scale: Scale, work: Work, job: object, log: Path, emit: Emit) -> dict[str, Any]:
    """Run ``work(job, emit)`` in ``scale.processes`` processes, whose output goes to the file ``log``. Returns the
    result of the leading one."""
    # "multi_gpu" means several processes started by torch. It also works on a CPU, where they communicate by gloo.
    how = ["--multi_gpu", "--mixed_precision=no", "--dynamo_backend=no"]
    if scale.accelerate_config is not None:
        how = [f"--config_file={find_recipe(scale.accelerate_config, '.yaml', '--accelerate-config')}"]
    how += [f"--num_processes={scale.processes}", "--num_machines=1", "--main_process_port=0"]
    with tempfile.TemporaryDirectory(prefix="launch-", dir=log.parent) as name:
        folder = Path(name).resolve()
        on_cpu = not isinstance(job, TrainJob) or job.config.policy.on_cpu
        (folder / _JOB).write_bytes(pickle.dumps((work, job, on_cpu)))
        program = [*how, "--module", "treeagent.contrib.scale.launch", str(folder)]
        command = [sys.executable, "-m", "accelerate.commands.launch", *program]
        with (
            log.open("wb") as output,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output) as process,
            ExitStack() as files,
        ):
            files.callback(process.terminate)
            paths = [_messages_path(folder, rank) for rank in range(scale.processes)]
            written = [files.enter_context(path.open("a+")) for path in paths]
            for kind, content in _messages(written, lambda: process.poll() is not None):
                if kind == "result":
                    return dict(content)
                if kind in _EXPECTED:
                    raise _EXPECTED[kind](content)
                emit(Event(**content))
    raise WorkerLost(f"the {scale.processes} processes broke down: {log} says why; continue with --resume")


def _messages_path(folder: Path, rank: int) -> Path:
    return folder / f"messages-{rank}.jsonl"


def _messages(written: Sequence[IO[str]], has_ended: Callable[[], bool]) -> Iterator[tuple[str, Any]]:
    """Yield the messages in the processes' files: events, and finally a result or an error."""
    ended, rests = False, [""] * len(written)
    while not ended:
        ended = has_ended()  # checked before reading, so that no message is missed
        for rank, file in enumerate(written):
            *lines, rests[rank] = (rests[rank] + file.read()).split("\n")
            for line in lines:
                yield from json.loads(line).items()
        time.sleep(0.1)


def lead(model: Model, work: Callable[[], T]) -> T:
    """Do ``work`` in the leading process, with whole weights. Returns its result in all processes."""
    done: list[Any] = [run_on_leader(model, work, leads=distributed.get_rank() == 0)]
    distributed.broadcast_object_list(done)
    return done[0]  # type: ignore[no-any-return]


def save_whole(checkpoint: Checkpoint, folder: Path) -> Path:
    """Save a checkpoint in the leading process, with whole weights."""
    weights = whole_weights(checkpoint.model)
    if distributed.get_rank() == 0:
        save_checkpoint(checkpoint, folder, weights)
    return folder


def main() -> None:
    """Main function of each process."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # whatever threads says: that is a number for the workers of one machine
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    work, job, on_cpu = pickle.loads((folder / _JOB).read_bytes())
    # The process group must exist before one process loads the weights for all.
    allow_cpu(PartialState(cpu=on_cpu, timeout=_WAIT))
    with _messages_path(folder, rank).open("a", buffering=1) as messages:

        def write(kind: str, content: Any) -> None:
            messages.write(json.dumps({kind: content}) + "\n")

        def emit(event: Event) -> None:
            if rank == 0:
                write("event", asdict(event))

        try:
            result = work(job, emit)
            if rank == 0:
                write("result", result)
        except tuple(_EXPECTED.values()) as error:
            write(next(kind for kind, expected in _EXPECTED.items() if isinstance(error, expected)), str(error))
            sys.exit(1)  # this also ends the other processes, which may be waiting for this one
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _exit_with_parent() -> None:
    """End this process when the starting process ends, which closes the pipe that is standard input here."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()

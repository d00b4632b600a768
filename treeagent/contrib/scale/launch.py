"""Run one job in several processes that train together, started by ``accelerate launch``: on this machine, or wherever
a Ray cluster has room.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

import torch
import yaml
from accelerate import DistributedType, PartialState
from accelerate.commands.config.config_args import load_config_from_file
from torch import distributed

from treeagent.config import RunConfig
from treeagent.learners.watch import TrainingDiverged
from treeagent.pipeline.metrics import Emit, Event
from treeagent.pipeline.processes import end_shared_workers
from treeagent.pipeline.recipes import find_recipe
from treeagent.types import WHOLE, NothingToLearn, Share, UserError, WorkerLost

Result = TypeVar("Result")

Work = Callable[[Any, Emit, bool], dict[str, Any]]
"""Function that every process runs: (job, function to send events with, whether it is the leading process) → result."""

_JOB = "job.pickle"
_FSDP: Mapping[str, tuple[Any, Any]] = {
    "fsdp_version": (2, 1),  # version 1 cannot gather a weight by itself
    "fsdp_auto_wrap_policy": ("TRANSFORMER_BASED_WRAP", "NO_WRAP"),  # weights are gathered one layer at a time
    "fsdp_state_dict_type": ("SHARDED_STATE_DICT", "SHARDED_STATE_DICT"),  # each process saves its shard
    "fsdp_offload_params": (False, False),  # validation uses the weights on their device
    "fsdp_activation_checkpointing": (False, False),  # training.gradient_checkpointing does this instead
    "fsdp_ignored_modules": (None, None),  # each process would train its own copy of them
}
"""For each setting of FSDP, the only value that an update can train with, and accelerate's default."""
_WAIT = timedelta(minutes=30)
"""How long a process waits for the slowest one; the default of transformers."""
_EXPECTED = {"nothing": NothingToLearn, "refused": UserError, "diverged": TrainingDiverged}
"""Errors that a process reports and that the starting process raises again, by name. The first class that matches is
used."""


def launch(work: Work, job: object, config: RunConfig, log: Path, emit: Emit) -> dict[str, Any]:
    """Run ``work(job, emit, leads)`` in ``update.processes`` processes. Returns the result of the leading one.

    The workers of the run are ended first, because the processes need the GPUs that these hold.

    Args:
        log: file for the output of the processes. On a Ray cluster, it must be on the disk that all machines share.

    Raises:
        WorkerLost: the processes could not be started, or failed.
        UserError: the cluster has no room for them.
    """
    end_shared_workers()
    with tempfile.TemporaryDirectory(prefix="launch-", dir=log.parent) as name:
        folder = Path(name).resolve()
        (folder / _JOB).write_bytes(pickle.dumps((work, job, config.policy.on_cpu)))
        with _started(config, folder, log) as ended, ExitStack() as files:
            paths = [_messages_path(folder, rank) for rank in range(config.update.processes)]
            written = [files.enter_context(path.open("a+")) for path in paths]
            for kind, content in _messages(written, ended):
                if kind == "result":
                    return dict(content)
                if kind in _EXPECTED:
                    raise _EXPECTED[kind](content)
                emit(Event(**content))
    raise WorkerLost(f"the {config.update.processes} processes broke down: {log} says why; continue with --resume")


@contextmanager
def _started(config: RunConfig, folder: Path, log: Path) -> Iterator[Callable[[], bool]]:
    """Start the processes. Yields a function that tells whether they have ended. They are ended with the context."""
    if config.engine == "ray":
        from treeagent.contrib.scale.ray import started_on_cluster

        with started_on_cluster(partial(_command, config, folder), config, log) as ended:
            yield ended
        return
    command = [sys.executable, *_command(config, folder)]
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output) as process,
    ):
        try:
            yield lambda: process.poll() is not None
        finally:
            process.terminate()


def _accelerate_config(config: RunConfig) -> Path:
    return find_recipe(str(config.update.accelerate_config), ".yaml", "update.accelerate_config")


def _command(config: RunConfig, folder: Path, rank: int | None = None, address: tuple[str, int] = ("", 0)) -> list[str]:
    """The arguments of Python that start the processes.

    Args:
        rank: the process to start; by default all, on this machine.
        address: host and port of the first process. Port 0 means any free port of this machine.
    """
    processes, (host, port) = config.update.processes, address
    # "multi_gpu" means several processes started by torch. It also works on a CPU, where they communicate by gloo.
    how = ["--multi_gpu", "--mixed_precision=no", "--dynamo_backend=no"]
    if config.update.accelerate_config is not None:
        how = [f"--config_file={_accelerate_config(config)}"]
    how += [f"--num_processes={processes}", f"--main_process_port={port}"]
    if rank is None:
        how += ["--num_machines=1"]
    else:  # accelerate expects as many processes on every machine, so each process counts as a machine of its own
        how += [f"--num_machines={processes}", f"--machine_rank={rank}", f"--main_process_ip={host}", "--same_network"]
    return ["-m", "accelerate.commands.launch", *how, "--module", "treeagent.contrib.scale.launch", str(folder)]


def check_accelerate_config(config: RunConfig) -> None:
    """Check that updates can train with the file ``update.accelerate_config``.

    Raises:
        UserError: the file is not valid, or has a setting that an update cannot train with.
    """
    setting = f"update.accelerate_config {config.update.accelerate_config}"
    file = _accelerate_config(config)
    try:
        settings = load_config_from_file(str(file))
    except (AttributeError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        raise UserError(
            f"{setting} is not a configuration of accelerate ({error}): make it by accelerate config"
        ) from error

    def refuse(name: str, value: object, fix: str) -> NoReturn:
        raise UserError(f"{setting} has {name}: {value}, with which an update cannot train: {fix}")

    kind, on_cpu = settings.distributed_type, config.policy.on_cpu
    if kind in (DistributedType.MEGATRON_LM, DistributedType.DEEPSPEED):
        refuse("distributed_type", kind.value, "choose FSDP (fsdp_version: 2), which shards weights too")
    if settings.mixed_precision not in (
        None,
        "no",
        {"float32": "no", "bfloat16": "bf16"}[config.precision(config.policy)],
    ):
        refuse("mixed_precision", settings.mixed_precision, "set it to 'no', since training.precision decides")
    if kind is not DistributedType.FSDP:
        return
    for name, (required, default) in _FSDP.items():
        if (value := settings.fsdp_config.get(name, default)) != required:
            refuse(name, value, "leave it out" if required is None else f"set it to {json.dumps(required)}")
    if settings.parallelism_config:
        refuse("parallelism_config", settings.parallelism_config, "leave it out")
    if settings.use_cpu is not on_cpu:
        refuse("use_cpu", settings.use_cpu, f"set it to {json.dumps(on_cpu)}, as policy.device_map has it")


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


def in_shares(work: Callable[[Share], Result]) -> list[Result]:
    """Do this process's share of some work. All processes that train together must call this. Each gets the results of
    all, in the order of the shares. A process that trains alone does the whole work.

    Args:
        work: a function whose result, or the error that it raises, can be pickled.

    Raises:
        Exception: the error of the first share that failed, in every process.
    """
    if not distributed.is_initialized():
        return [work(WHOLE)]
    share = Share(distributed.get_rank(), distributed.get_world_size())
    own: Result | Exception
    try:
        own = work(share)
    except Exception as error:
        own = error
    results: list[Any] = [None] * share.count
    distributed.all_gather_object(results, own)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def main() -> None:
    """Main function of each process."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # whatever threads says: that is a number for the workers of one machine
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    work, job, on_cpu = pickle.loads((folder / _JOB).read_bytes())
    # The process group must exist before the processes share the reading of trees, and before one loads the weights for
    # all.
    PartialState(cpu=on_cpu, timeout=_WAIT)
    with _messages_path(folder, rank).open("a", buffering=1) as messages:

        def write(kind: str, content: Any) -> None:
            messages.write(json.dumps({kind: content}) + "\n")

        def emit(event: Event) -> None:
            if rank == 0:
                write("event", asdict(event))

        try:
            result = work(job, emit, rank == 0)
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

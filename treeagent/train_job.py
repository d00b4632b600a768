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
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate import DistributedType, PartialState
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import is_deepspeed_available
from torch import distributed

from treeagent.config import Method, RunConfig
from treeagent.jobs import TrainJob, train_policy
from treeagent.learners.config import OptimiserConfig
from treeagent.learners.sharding import sharing
from treeagent.learners.watch import TrainingDiverged
from treeagent.telemetry import Emit, Event
from treeagent.types import NothingToLearn, Refused

_JOB, _TOLD = "job.pickle", "told.jsonl"
_LOG = "processes.log"
_SHARDED = "SHARDED_STATE_DICT"
_Settings = Mapping[str, tuple[Any, Any, str]]
"""The one value of a setting by which an update can be trained, accelerate's where it is left out, and why."""
_FSDP: _Settings = {
    "fsdp_version": (2, 1, "the first cannot gather a weight by itself"),
    "fsdp_auto_wrap_policy": ("TRANSFORMER_BASED_WRAP", "NO_WRAP", "weights are gathered a layer at a time"),
    "fsdp_state_dict_type": (_SHARDED, _SHARDED, "each process saves its share, and the new policy is whole anyway"),
    "fsdp_offload_params": (False, False, "validation reads weights where they lie, and more processes need less each"),
    "fsdp_activation_checkpointing": (False, False, "gradient_checkpointing in [update.rft], dpo and grpo does it"),
    "fsdp_ignored_modules": (None, None, "processes would train them apart"),
}
_WHOLE = "validation reads weights where they lie, and whole"
_DEEPSPEED: _Settings = {
    "deepspeed_config_file": (None, None, "it would say again what update's settings say"),
    "zero3_init_flag": (False, False, _WHOLE),
    "offload_optimizer_device": ("none", "none", "the optimiser's step is update's own"),
    "offload_param_device": ("none", "none", _WHOLE),
}
_ZERO_STAGES = (0, 1, 2)
"""In which every process has all weights."""
_WAIT = timedelta(minutes=30)
"""For the slowest process, as transformers waits."""
_EXPECTED = {"nothing": NothingToLearn, "refused": Refused, "diverged": TrainingDiverged}
"""By the name under which a process tells them, what an update may end with; the first that fits."""


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
        for what, said in _run(_command(job.config, job.method, folder), folder, job.scratch / _LOG):
            if what == "facts":
                return dict(said)
            if what in _EXPECTED:
                raise _EXPECTED[what](said)
            emit(Event(**said))
    raise LaunchError(
        f"the {job.config.update.processes} processes of update {job.out.name} broke down: {job.scratch / _LOG} tells "
        "why; what they saved is kept for --resume"
    )


def _command(config: RunConfig, method: Method, folder: Path) -> list[str]:
    update, given = config.update, config.update.accelerate_config
    if given is not None:
        refuse_unable(given, config, method)
        optimiser = getattr(update, method)
        how = [
            f"--config_file={given}",
            # DeepSpeed does by itself what a Trainer does otherwise; for the others they mean nothing.
            f"--gradient_accumulation_steps={optimiser.accumulation}",
            f"--gradient_clipping={optimiser.max_grad_norm}",
        ]
    else:
        # "multi_gpu" means processes that torch starts, on a CPU too; they talk by gloo there.
        how = ["--multi_gpu", "--mixed_precision=no", "--dynamo_backend=no"]
    how += [f"--num_processes={update.processes}", "--num_machines=1", "--main_process_port=0"]  # 0: any that is free
    return [sys.executable, "-m", "accelerate.commands.launch", *how, "--module", "treeagent.train_job", str(folder)]


def refuse_unable(given: str, config: RunConfig, method: Method) -> None:
    """
    Raises:
        Refused: the file of accelerate is none, or asks for what an update cannot be trained by.
    """
    named = f"update.accelerate_config {given}"
    if not Path(given).is_file():
        raise Refused(f"{named} is no file: make it by accelerate config")
    try:
        asked = load_config_from_file(given)
    except (AttributeError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        raise Refused(f"{named} is no configuration of accelerate: {error}; make it by accelerate config") from error
    if asked.distributed_type is DistributedType.MEGATRON_LM:
        raise Refused(f"{named} is of type MEGATRON_LM, by which no update can be trained: choose FSDP or DEEPSPEED")
    optimiser = getattr(config.update, method)
    if asked.mixed_precision not in (None, "no", {"float32": "no", "bfloat16": "bf16"}[optimiser.precision]):
        raise Refused(
            f"{named} has mixed_precision: {asked.mixed_precision}, but update.{method}.precision is "
            f"{optimiser.precision!r}: leave the first at 'no', since the second decides"
        )
    if asked.distributed_type is DistributedType.FSDP:
        _refuse_settings(named, asked.fsdp_config, _FSDP)
    elif asked.distributed_type is DistributedType.DEEPSPEED:
        _refuse_settings(named, asked.deepspeed_config, _DEEPSPEED)
        _refuse_deepspeed(named, asked.deepspeed_config.get("zero_stage", 2), optimiser, method)
    else:
        return
    if asked.parallelism_config:
        raise Refused(
            f"{named} has parallelism_config: {asked.parallelism_config}, by which no update can be trained: its "
            "processes share one set of weights out; leave it out"
        )
    on_cpu = config.policy.device_map in (None, "cpu")
    if asked.use_cpu is not on_cpu:
        raise Refused(
            f"{named} has use_cpu: {asked.use_cpu}, but policy.device_map is {config.policy.device_map!r}: set "
            + ("use_cpu: true, or policy.device_map to 'cuda'" if on_cpu else "use_cpu: false")
        )


def _refuse_settings(named: str, asked: Mapping[str, Any], settings: _Settings) -> None:
    for name, (able, default, why) in settings.items():
        if (value := asked.get(name, default)) != able:
            fix = "leave it out" if able is None else f"set it to {str(able).lower() if able is False else able}"
            raise Refused(f"{named} has {name}: {value}, by which no update can be trained: {why}; {fix}")


def _refuse_deepspeed(named: str, stage: int, optimiser: OptimiserConfig, method: Method) -> None:
    if stage not in _ZERO_STAGES:
        raise Refused(
            f"{named} has zero_stage: {stage}, by which no update can be trained: {_WHOLE}; set it to 2, or choose "
            "FSDP (fsdp_version: 2), which shares weights out as well"
        )
    if optimiser.optimiser == "muon":
        raise Refused(
            f"update.{method}.optimiser is 'muon', which makes matrices orthogonal, but DeepSpeed of {named} cuts them "
            "into pieces: set the first to 'adamw', or choose FSDP (fsdp_version: 2)"
        )
    if not is_deepspeed_available():
        raise Refused(f"{named} is of type DEEPSPEED, which is not installed: pip install treeagent[deepspeed]")


def _run(command: list[str], folder: Path, log: Path) -> Iterator[tuple[str, Any]]:
    """What the leading process tells while the command runs: "event", or, as the last, an outcome."""
    # DeepSpeed compiles some of itself at its first use, by the ninja that is installed beside it.
    environment = os.environ | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])}
    with (
        log.open("wb") as output,
        (folder / _TOLD).open() as told,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment) as process,
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
    if sharing():  # the processes must know each other before one of them reads the weights for all
        PartialState(cpu=job.config.policy.device_map in (None, "cpu"), timeout=_WAIT)
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
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _end_with_starter() -> None:
    """Every process inherits the reading end of a pipe that nobody writes to; it closes with its other end."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()

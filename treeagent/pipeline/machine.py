"""Choose what suits a model on this machine: the number format of its weights, the number of workers and their threads.

Workers with one thread each use the cores best, since they never wait for each other. Workers get more threads only if
there are fewer workers than cores: memory has no room for more copies of the weights, or there are ``_MOST_WORKERS``.
"""

import os
from dataclasses import replace
from pathlib import Path

import psutil
import torch

from treeagent.agent.checkpoint import count_weights
from treeagent.config import LARGE, RunConfig

_MOST_WORKERS = 8
"""Most workers. With more, their batches of trees are small, and the memory of each holds a copy of the weights."""
_MOST_THREADS = 16
"""Most threads of a worker. With more, a forward pass of a billion parameters is hardly faster."""
_WORKER_BYTES = 3 << 29
"""Memory of a worker in bytes, in addition to its weights and its KV cache: torch, transformers, trees."""


def fit_to_machine(
    config: RunConfig, checkpoint: str | Path | None = None, begun: RunConfig | None = None
) -> tuple[RunConfig, str]:
    """Return the settings with the values that they leave to the machine: ``workers``, ``threads``, ``policy.dtype``
    and ``training.precision``. Also return a sentence that states the choice, which is empty if a small model runs on
    the CPU of this machine.

    An engine or a server does not sample in the workers. Then a worker has one thread, and the weights keep the
    checkpoint's own number format.

    Args:
        checkpoint: the model that the run starts from; by default ``policy.model``, or else a model from scratch.
        begun: the settings with which a resumed run began. Its number formats are kept.
    """
    policy = config.policy
    name = config.policy.model if checkpoint is None else checkpoint
    counted = policy.on_cpu and policy.generator == "local" and name is not None
    weights, own = count_weights(name) if counted and name is not None else (0, torch.float32)
    if weights < LARGE:
        one = not policy.on_cpu or "vllm" in (policy.generator, config.world.generator)
        workers = 1 if one else _most_workers(0, policy.cache_bytes, 1)
        chosen, said = (config, "") if policy.on_cpu else _with_precision(config, begun)
        return replace(chosen, workers=config.workers or workers, threads=config.threads or 1), said
    dtype, training, fast = policy.dtype, config.training, has_bfloat16()
    if dtype == "auto":
        dtype = begun.policy.dtype if begun else "bfloat16" if fast else "auto"
    if training.precision == "auto":
        training = replace(training, precision=begun.training.precision if begun else "bfloat16" if fast else "auto")
    size = weights * (own if dtype == "auto" else getattr(torch, dtype)).itemsize
    workers = config.workers or _most_workers(size, policy.cache_bytes, config.threads or 1)
    threads = config.threads or max(min(cores() // workers, torch.get_num_threads(), _MOST_THREADS), 1)
    chosen = replace(config, workers=workers, threads=threads, policy=replace(policy, dtype=dtype), training=training)
    form = str(own).removeprefix("torch.") if dtype == "auto" else dtype
    return chosen, (
        f"{name}: {weights / 1e6:,.0f} million weights sample in {form} ({size / 2**30:.1f} GiB a worker) and train in "
        f"{chosen.precision(policy)}, workers {workers}, threads {threads} (policy.dtype, training.precision, workers "
        "and threads change this)"
    )


def _with_precision(config: RunConfig, begun: RunConfig | None) -> tuple[RunConfig, str]:
    """The settings with the number format in which this machine's GPU trains, and a sentence that states it."""
    if config.training.precision != "auto" or not torch.cuda.is_available():
        return config, ""
    supported = torch.cuda.is_bf16_supported(including_emulation=False)
    precision = begun.training.precision if begun else "bfloat16" if supported else "float32"
    said = f"{torch.cuda.get_device_name()}: updates compute in {precision} (training.precision changes this)"
    return replace(config, training=replace(config.training, precision=precision)), said


def training_threads(config: RunConfig, checkpoint: Path) -> int:
    """Return the number of threads of the only update of a stage: those of all workers, because they are idle then, for
    a large model on this machine's CPU; else those of one worker."""
    threads = max(config.threads, 1)
    if config.workers < 2 or not config.policy.on_cpu or count_weights(checkpoint)[0] < LARGE:
        return threads
    return min(config.workers * threads, max(threads, _MOST_THREADS))


def _most_workers(weight_bytes: int, cache_bytes: int, threads: int) -> int:
    """Return the number of workers for which there are cores and memory, at least 1."""
    room: int = psutil.virtual_memory().total // (weight_bytes + cache_bytes + _WORKER_BYTES)
    return max(min(cores() // threads, room, _MOST_WORKERS), 1)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 matrices in hardware (AMX), which doubles the speed of prompts and of
    training. With AVX512-BF16 alone, it processes prompts more slowly than in float32, and without either it has to
    convert each number."""
    return torch.cpu.get_capabilities().get("amx_bf16") is True

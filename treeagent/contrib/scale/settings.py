"""Settings of ``treeagent scale``, and the context in which they hold."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from treeagent.pipeline import processes, update


@dataclass(frozen=True)
class Scale:
    """Where workers run, and in how many processes an update trains: the options of ``treeagent scale``."""

    processes: int = 1
    """Processes that train together (data-parallel). Each has its own batches, and an optimiser step uses the batches
    of all."""
    accelerate_config: str | None = None
    """File of ``accelerate config`` with which these processes are started, or the name of one below configs/; None
    means plain data-parallel training. configs/models/fsdp.yaml shards the weights."""
    ray: bool = False
    address: str | None = None
    gpus_per_worker: float = 0.0


@contextmanager
def installed(scale: Scale) -> Iterator[None]:
    """Context in which runs use the workers and processes that ``scale`` names."""
    before = processes.start_workers, update.train_all
    if scale.ray:
        from treeagent.contrib.scale.ray import RayWorkers

        processes.start_workers = partial(RayWorkers, scale)
    if scale.processes > 1:
        from treeagent.contrib.scale.launch import train_together

        update.train_all = partial(train_together, scale)
    try:
        yield
    finally:
        processes.start_workers, update.train_all = before

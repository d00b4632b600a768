"""How a command uses more than this machine's worker processes."""

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Scale:
    """Where workers run, and in how many processes an update trains."""

    processes: Annotated[int, Field(gt=0, le=1024)] = 1
    """Processes that train together (data-parallel). Each has its own batches, and an optimiser step uses the batches
    of all."""
    accelerate_config: str | None = None
    """File of ``accelerate config`` with which these processes are started, or the name of one below configs/; None
    means plain data-parallel training. configs/models/fsdp.yaml shards the weights."""
    ray: bool = False
    """Whether the workers are actors of a Ray cluster."""
    address: str | None = None
    """Address of a running Ray cluster, such as "auto" or "10.0.0.1:6379"; None starts one on this machine."""
    gpus_per_worker: Annotated[float, Field(ge=0)] = 0.0
    """GPUs that each Ray worker reserves: a whole number of them, or a fraction of one."""

"""``treeagent scale``: run another command on a Ray cluster, or with updates in several processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer
from typer.main import get_command

from treeagent.cli.app import app as root
from treeagent.pipeline import processes, update

app = typer.Typer()


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


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def scale(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The command to run, with its options.")],
    processes: Annotated[int, typer.Option(min=1, help="Processes that train together in an update.")] = 1,
    accelerate_config: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE.yaml", help="A file of `accelerate config`; models/fsdp shards the weights."),
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Run workers as actors of a Ray cluster.")] = False,
    address: Annotated[
        str | None, typer.Option(help="The cluster, such as auto; by default one is started on this machine.")
    ] = None,
    gpus_per_worker: Annotated[float, typer.Option(min=0, help="GPUs that each Ray worker reserves.")] = 0.0,
) -> None:
    """Run COMMAND with workers on a Ray cluster (--ray), or with updates in several processes (--processes).

    Example: treeagent scale --ray --address auto train Qwen/Qwen3-8B --config models/cluster --out /shared/runs/qwen

    Example: treeagent scale --processes 8 --accelerate-config models/fsdp update grpo CHECKPOINT --out runs/qwen
    """
    with installed(Scale(processes, accelerate_config, ray, address, gpus_per_worker)):
        code = get_command(root).main(command, prog_name="treeagent", standalone_mode=False)
    if code:
        raise typer.Exit(code)

"""``treeagent scale``: run another command on a Ray cluster, or with updates in several processes."""

from typing import Annotated

import typer

app = typer.Typer()


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
    from typer.main import get_command

    from treeagent.cli.app import app as root
    from treeagent.contrib.scale.settings import Scale, installed

    with installed(Scale(processes, accelerate_config, ray, address, gpus_per_worker)):
        code = get_command(root).main(command, prog_name="treeagent", standalone_mode=False)
    if code:
        raise typer.Exit(code)

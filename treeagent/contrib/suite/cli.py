"""``treeagent suite``: evaluate a policy under each disturbance of the environment, on the same tasks."""

from dataclasses import replace
from typing import Annotated, Any, get_args

import typer

from treeagent.cli.options import (
    CheckpointName,
    Config,
    Out,
    Overrides,
    Resume,
    Seed,
    Trust,
    chosen_settings,
    find_checkpoint,
)
from treeagent.pipeline.progress import RichProgress
from treeagent.pipeline.terminal import Terminal

app = typer.Typer()


@app.command()
def suite(
    checkpoint: CheckpointName,
    out: Out,
    overrides: Overrides = None,
    config: Config = None,
    seed: Seed = None,
    resume: Resume = True,
    trust: Trust = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="DISTURBANCE", help="One disturbance; may be repeated.")
    ] = None,
) -> None:
    """Evaluate a policy as it is and then under each disturbance, on the same held-out tasks.

    Reads CHECKPOINT, writes a run for each environment to RUN/plain, RUN/noise and so on, and prints the success of
    each beside that in the plain environment.

    Example: treeagent suite runs/shop/checkpoints/dpo --out runs/robust evaluate.tasks=100
    """
    from treeagent import loop
    from treeagent.contrib.guards.disturbed import OF_TOOLS, Disturbance
    from treeagent.contrib.suite.report import print_suite, rows_of
    from treeagent.pipeline.build import environment
    from treeagent.pipeline.folder import Run
    from treeagent.types import UserError

    known = get_args(Disturbance)
    if unknown := [each for each in only or () if each not in known]:
        raise UserError(f"--only is {unknown[0]!r}: use one of {', '.join(known)}")
    path, rows = find_checkpoint(checkpoint), []
    plain = chosen_settings(config, overrides, seed, resume, trust, out / "plain", path)
    loop.evaluate(plain, out / "plain", path, resume=resume, progress=RichProgress())
    rows += rows_of(Run.open(out / "plain"), "plain")
    tools = environment(plain).tools()
    for kind in only or known:
        if kind in OF_TOOLS and not tools:
            continue
        added: dict[str, Any] = {"name": "disturbances", "options": {"kinds": (kind,)}}
        wrappers = (*plain.environment.wrappers, added)
        harder = replace(plain, environment=replace(plain.environment, wrappers=wrappers))
        folder = out / kind.replace(" ", "-")
        loop.evaluate(harder, folder, path, resume=resume, progress=RichProgress())
        rows += rows_of(Run.open(folder), kind)
    print_suite(rows, Terminal())

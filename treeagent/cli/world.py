"""``treeagent world``: fit a world model and audit it."""

from pathlib import Path
from typing import Annotated

import typer

from treeagent.cli.options import Overrides, RunFolder, Trust, require_trust, require_trusted_worlds
from treeagent.config import load_config
from treeagent.pipeline.folder import Run
from treeagent.pipeline.progress import RichProgress
from treeagent.pipeline.recipes import find_recipe
from treeagent.pipeline.report.show import fidelity_table
from treeagent.pipeline.terminal import Terminal

app = typer.Typer(help="Fit a world model to a run's steps, and audit it on held-out tasks.", no_args_is_help=True)


@app.command("fit")
def fit_world_model(
    run_folder: RunFolder,
    overrides: Overrides = None,
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="NAME|FILE.toml", help="A recipe or a file; only its section world is used."),
    ] = None,
    trust: Trust = False,
) -> None:
    """Train a world model on the steps of RUN's trees, except those of held-out tasks.

    Reads RUN/trees, writes RUN/checkpoints/world and its memory, RUN/checkpoints/world.sqlite.

    Example: treeagent world fit runs/shop --config world
    """
    from treeagent.pipeline.world import fit_world

    own = Run.open(run_folder).path / "config.toml"
    require_trust(own, overrides or (), trust)
    settings = load_config(own, overrides or (), world=None if config is None else find_recipe(config))
    require_trusted_worlds(settings, trust)
    with Run.create(run_folder, Run.open(run_folder).config, resume=True) as run:
        written = fit_world(settings, run, RichProgress())
    Terminal().print(f"world model in {written}")


@app.command("eval")
def audit_world_model(run_folder: RunFolder, overrides: Overrides = None, trust: Trust = False) -> None:
    """Audit RUN's world model: compare its predictions with the environment's answers on held-out tasks.

    Reads RUN/trees and RUN/checkpoints/world, or the model of the last round, and writes RUN/fidelity.json.

    Example: treeagent world eval runs/shop
    """
    from treeagent.pipeline.imagination import world_of
    from treeagent.pipeline.world import audit_world

    run = Run.open(run_folder)
    for file in filter(Path.is_file, (run.path / "config.toml", run.path / "world.toml")):
        require_trust(file, overrides or (), trust)
    config, model = world_of(run, overrides or ())
    require_trusted_worlds(config, trust)
    Terminal().print("", fidelity_table(audit_world(config, run, model)), sep="\n")

"""``treeagent lag``: rounds whose updates run beside the next round's search."""

from pathlib import Path
from typing import Annotated

import typer

from treeagent.cli.options import (
    Config,
    Out,
    Overrides,
    Resume,
    Seed,
    Trust,
    checkpoint_and_overrides,
    chosen_settings,
    print_end,
)
from treeagent.pipeline.progress import RichProgress

app = typer.Typer()


@app.command()
def lag(
    checkpoint: Annotated[
        str | None,
        typer.Argument(metavar="[CHECKPOINT]", help="The policy to start from; by default a warm start makes one."),
    ] = None,
    out: Out = Path("runs/lag"),
    overrides: Overrides = None,
    config: Config = None,
    seed: Seed = None,
    resume: Resume = False,
    trust: Trust = False,
) -> None:
    """Search and learn in rounds, as train does, with the updates of each round beside the search of the next.

    Example: treeagent lag --config adapt --out runs/lag
    """
    start, changes = checkpoint_and_overrides(checkpoint, overrides)
    settings = chosen_settings(config, changes, seed, resume, trust, out, start)
    from treeagent.contrib.scale.lag import train_with_lag

    print_end(train_with_lag(settings, out, start, resume=resume, progress=RichProgress()), out)

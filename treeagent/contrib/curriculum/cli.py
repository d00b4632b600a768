"""``treeagent curriculum``: rounds on stages of growing difficulty."""

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
def curriculum(
    stages: Annotated[Path, typer.Argument(metavar="STAGES.toml", help="The stages, the easiest first.")],
    checkpoint: Annotated[
        str | None,
        typer.Argument(metavar="[CHECKPOINT]", help="The policy to start from; by default a warm start makes one."),
    ] = None,
    out: Out = Path("runs/curriculum"),
    overrides: Overrides = None,
    config: Config = None,
    seed: Seed = None,
    resume: Resume = False,
    trust: Trust = False,
) -> None:
    """Search and learn in rounds, as train does, on tasks that grow harder as the policy succeeds.

    Example: treeagent curriculum stages.toml --config envs/toolbox --out runs/curriculum
    """
    start, changes = checkpoint_and_overrides(checkpoint, overrides)
    settings = chosen_settings(config, changes, seed, resume, trust, out, start)
    from treeagent.contrib.curriculum.loop import read_curriculum, train

    print_end(train(settings, out, read_curriculum(stages), start, resume=resume, progress=RichProgress()), out)

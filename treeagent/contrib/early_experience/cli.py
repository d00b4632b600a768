"""``treeagent early-experience``: learn from the results of a policy's own actions before it is updated."""

from pathlib import Path
from typing import Annotated

import typer

from treeagent.cli.options import RunFolder, find_checkpoint, require_trees
from treeagent.pipeline.terminal import Terminal

app = typer.Typer()


@app.command()
def early_experience(
    run_folder: RunFolder,
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The policy that searched RUN's trees.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Options, such as rows=world.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="NEW", help="Folder of the new checkpoint.")] = Path("early"),
) -> None:
    """Train CHECKPOINT on the early experience in RUN's trees: what its own actions led to.

    Reads RUN/trees, writes the checkpoint NEW.

    Example: treeagent early-experience runs/shop runs/shop/checkpoints/warm rows=world --out early
    """
    from treeagent import seams
    from treeagent.contrib.early_experience.train import EarlyOptions
    from treeagent.contrib.early_experience.train import early_experience as train
    from treeagent.pipeline.folder import COLLECTED, Run

    require_trees(run_folder, COLLECTED)
    given = dict(each.partition("=")[::2] for each in options or ())
    settings = seams.checked(EarlyOptions, given, "treeagent early-experience")
    rows = train(Run.open(run_folder), find_checkpoint(checkpoint), out, settings)
    Terminal(soft_wrap=True).print(f"{out} has learnt from {rows} rows")

"""``treeagent reward``: fit a reward model to a run's trees, and audit it."""

from typing import Annotated

import typer

from treeagent.cli.options import Overrides, RunFolder, Trust, find_checkpoint, require_trees, trusted_settings
from treeagent.pipeline.terminal import Terminal

app = typer.Typer(help="Fit a reward model to a run's trees, and audit it on held-out tasks.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Fit a reward model to a run's trees, and audit it on held-out tasks."""


@app.command()
def fit(
    run_folder: RunFolder,
    overrides: Overrides = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint", metavar="CHECKPOINT", help="The model to start from; by default the one that searched."
        ),
    ] = None,
    trust: Trust = False,
) -> None:
    """Train a Bradley-Terry reward model on the ends and siblings of RUN's trees and on the marks of reviewers.

    Reads RUN/trees and RUN/marks.jsonl, writes RUN/checkpoints/reward with its audit on held-out tasks. Use the model
    with rewards.learned=RUN/checkpoints/reward.

    Example: treeagent reward fit runs/shop
    """
    from treeagent.contrib.hindsight.hindsight import searching_policy
    from treeagent.contrib.judging.reward_stage import fit_reward
    from treeagent.pipeline.folder import COLLECTED, Run
    from treeagent.pipeline.progress import RichProgress

    own = Run.open(run_folder)
    require_trees(run_folder, COLLECTED)
    settings = trusted_settings(run_folder, overrides, trust)
    start = find_checkpoint(checkpoint) if checkpoint else searching_policy(own, "--checkpoint")
    with Run.create(run_folder, own.config, resume=True) as run:
        written, audit = fit_reward(settings, run, RichProgress(), start)
    Terminal().print(str(audit.to_json()), f"reward model in {written}", sep="\n")

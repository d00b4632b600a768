"""``treeagent reward``: fit a reward model to a run's trees, and tell what judged a run's ends."""

from typing import Annotated

import typer

from treeagent.cli.options import RunFolder, find_checkpoint, require_trees
from treeagent.pipeline.terminal import Terminal

app = typer.Typer(help="Fit a reward model to a run's trees, and audit it on held-out tasks.", no_args_is_help=True)


@app.command()
def fit(
    run_folder: RunFolder,
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Options of the fit, such as epochs=2.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint", metavar="CHECKPOINT", help="The model to start from; by default the one that searched."
        ),
    ] = None,
) -> None:
    """Train a Bradley-Terry reward model on the ends of RUN's trees, and audit it on held-out tasks.

    Writes RUN/checkpoints/reward. Use it with rewards.function=learned and
    'rewards.options={model="RUN/checkpoints/reward"}'.

    Example: treeagent reward fit runs/shop
    """
    from treeagent import seams
    from treeagent.contrib.hindsight.divergence import searching_policy
    from treeagent.contrib.judging.fit import fit_reward
    from treeagent.contrib.judging.scorer import FitOptions
    from treeagent.pipeline.folder import COLLECTED, Run

    own = Run.open(run_folder)
    require_trees(run_folder, COLLECTED)
    given = dict(each.partition("=")[::2] for each in options or ())
    settings = seams.checked(FitOptions, given, "treeagent reward fit")
    start = find_checkpoint(checkpoint) if checkpoint else searching_policy(own)
    console = Terminal()
    with Run.create(run_folder, own.config, resume=True) as run:
        written, audit = fit_reward(run, start, settings)
    for name in ("tasks", "ends", "pairs", "pair_accuracy", "cap"):
        value = getattr(audit, name)
        console.print(f"{name:24} {round(value, 3) if isinstance(value, float) else value}")
    for point in audit.best_of:
        console.print(
            f"best of {point.n:2}: predicted {point.score:.3f}, true {point.paid:.3f} of {point.possible:.3f}"
        )
    console.print(f"reward model in {written}", soft_wrap=True)


@app.command()
def told(run_folder: RunFolder) -> None:
    """Print what a judge cost in RUN, why ends have no verdict, and how often the reward agrees with the environment.

    Example: treeagent reward told runs/shop
    """
    from treeagent.contrib.judging.ends import agreement
    from treeagent.contrib.judging.replies import FILE, Replies
    from treeagent.pipeline.folder import Run
    from treeagent.search.record import from_record
    from treeagent.store import read_as

    run, console = Run.open(run_folder), Terminal(soft_wrap=True)
    if (run.path / FILE).is_file():
        for name, number in Replies(run.path / FILE).figures().items():
            console.print(f"{number:8}  {name}")
    trees = (tree for name in run.collections() for tree in read_as(from_record, run.trees, name))
    ends, share, unknown = agreement(trees)
    console.print(f"agrees with the environment on {share:.0%} of {ends} ends; {unknown} are open")

"""Commands that make runs: quickstart, train, collect, update, eval."""

from pathlib import Path
from typing import Annotated

import typer

import treeagent
from treeagent.cli.options import (
    CheckpointName,
    Config,
    Out,
    Overrides,
    Resume,
    Seed,
    Trust,
    checkpoint_and_overrides,
    chosen_settings,
    find_checkpoint,
    print_end,
)
from treeagent.config import Method
from treeagent.pipeline.folder import Run
from treeagent.pipeline.progress import RichProgress
from treeagent.pipeline.report.show import print_results, show_alarms
from treeagent.pipeline.terminal import Terminal

app = typer.Typer()


Start = Annotated[
    str | None,
    typer.Argument(
        metavar="CHECKPOINT", help="The policy to start from; by default warm_start.checkpoint, or else a warm start."
    ),
]


@app.command()
def quickstart(
    checkpoint: Start = None,
    overrides: Overrides = None,
    config: Config = None,
    out: Out = Path("runs/quickstart"),
    seed: Seed = None,
    resume: Resume = False,
    trust: Trust = False,
) -> None:
    """Run the whole pipeline once: search, update by RFT, DPO and GRPO, evaluate all policies. Without a policy to
    start from, a small model first imitates demonstrations.

    Writes RUN/trees, RUN/checkpoints, RUN/metrics.jsonl, RUN/results.json and RUN/report.html.

    Example: treeagent quickstart --config quickstart --out runs/booking search.limits.simulations=32
    """
    start, changes = checkpoint_and_overrides(checkpoint, overrides)
    settings = chosen_settings(config, changes, seed, resume, trust, out, start)
    print_end(treeagent.quickstart(settings, out, start, resume=resume, progress=RichProgress()), out)


@app.command()
def collect(
    checkpoint: CheckpointName,
    out: Out,
    overrides: Overrides = None,
    config: Config = None,
    seed: Seed = None,
    resume: Resume = False,
    trust: Trust = False,
) -> None:
    """Search training tasks with a policy: one search tree for each task.

    Reads CHECKPOINT, writes RUN/trees/collect-*.jsonl.zst, one file for each finished batch of trees.

    Example: treeagent collect runs/shop/checkpoints/base --out runs/more collect.tasks=200
    """
    policy = find_checkpoint(checkpoint)
    settings = chosen_settings(config, overrides, seed, resume, trust, out, policy)
    treeagent.collect(settings, out, policy, resume=resume, progress=RichProgress())


@app.command()
def train(
    checkpoint: Start = None,
    out: Out = Path("runs/train"),
    overrides: Overrides = None,
    config: Config = None,
    seed: Seed = None,
    resume: Resume = False,
    trust: Trust = False,
) -> None:
    """Search and learn in rounds: each round searches with the current policy and updates it from the trees.

    Writes RUN/trees, RUN/checkpoints/round-N-METHOD, RUN/metrics.jsonl, RUN/results.json and RUN/report.html.

    Example: treeagent train --config quickstart --out runs/adapt adapt.rounds=3
    """
    start, changes = checkpoint_and_overrides(checkpoint, overrides)
    settings = chosen_settings(config, changes, seed, resume, trust, out, start)
    print_end(treeagent.train(settings, out, start, resume=resume, progress=RichProgress()), out)


@app.command()
def update(
    method: Annotated[Method, typer.Argument(metavar="METHOD", help="Update method: rft, distil, dpo or grpo.")],
    checkpoint: CheckpointName,
    out: Out,
    overrides: Overrides = None,
    config: Config = None,
    seed: Seed = None,
    resume: Resume = True,
    trust: Trust = False,
    trees: Annotated[Path | None, typer.Option(metavar="RUN", help="Learn from this run's trees, not --out's.")] = None,
) -> None:
    """Update a policy once, by one method, from the trees of a run.

    Reads CHECKPOINT and the trees of all rounds, writes RUN/checkpoints/METHOD. To change the settings of the run with
    the trees, use another --out and name that run by --trees; its settings are then the defaults.

    Example: treeagent update dpo runs/shop/checkpoints/base --out runs/dpo50 --trees runs/shop update.dpo.max_steps=50
    """
    policy = find_checkpoint(checkpoint)
    settings = chosen_settings(config, overrides, seed, resume, trust, out, policy, trees)
    written = treeagent.update(settings, out, policy, method, trees=trees, resume=resume, progress=RichProgress())
    show_alarms(Run.open(out), Terminal(stderr=True))
    Terminal().print(f"checkpoint in {written}")


@app.command("eval")
def evaluate(
    checkpoint: CheckpointName,
    out: Out,
    overrides: Overrides = None,
    config: Config = None,
    seed: Seed = None,
    resume: Resume = True,
    trust: Trust = False,
) -> None:
    """Evaluate a policy on held-out tasks: greedily, by best-of-N and by tree search, with the cost of each.

    Reads CHECKPOINT, writes RUN/results.json and prints it as a table.

    Example: treeagent eval runs/shop/checkpoints/dpo --out runs/dpo evaluate.tasks=500
    """
    policy = find_checkpoint(checkpoint)
    settings = chosen_settings(config, overrides, seed, resume, trust, out, policy, otherwise="first_look")
    print_results(treeagent.evaluate(settings, out, policy, resume=resume, progress=RichProgress()), Terminal())

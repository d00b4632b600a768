"""Commands that make runs: quickstart, train, collect, update, eval."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from treeagent.cli.options import (
    CheckpointName,
    Config,
    Given,
    Out,
    Overrides,
    Resume,
    Seed,
    Trust,
    checkpoint_and_overrides,
    find_checkpoint,
    open_run,
    print_rows,
    require_trees,
)
from treeagent.pipeline.terminal import Terminal

if TYPE_CHECKING:  # these modules take seconds to import, which would slow down --help
    from treeagent.cli.preflight import Use

app = typer.Typer()


@app.command()
def quickstart(
    overrides: Overrides = None,
    config: Config = None,
    out: Out = Path("runs/quickstart"),
    seed: Seed = None,
    resume: Resume = False,
    trust: Trust = False,
) -> None:
    """Run the whole pipeline once: imitate demonstrations, search, update by RFT, DPO and GRPO, evaluate all policies.

    Writes RUN/trees, RUN/checkpoints, RUN/metrics.jsonl, RUN/results.json and RUN/report.html.

    Example: treeagent quickstart --config quickstart --out runs/shop search.limits.simulations=32
    """
    options = Given(config, overrides, seed, out, resume, trust)
    uses: list[Use] = ["warm_start", "collect", "update", "evaluate"]
    with open_run(options, uses, lambda config: config.update.methods) as (run, progress):
        from treeagent import loop
        from treeagent.pipeline.processes import shared_workers

        with shared_workers(run.config):
            print_rows(loop.quickstart(run.config, run, progress))


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
    checkpoint_path = find_checkpoint(checkpoint)
    options = Given(config, overrides, seed, out, resume, trust)
    with open_run(options, ["collect"], checkpoint=checkpoint_path) as (run, progress):
        from treeagent.pipeline.collect import collect as search_tasks

        search_tasks(run.config, run, progress, checkpoint_path)


@app.command()
def train(
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="[CHECKPOINT]",
            help="The policy to start from; by default a warm start makes one.",
            show_default=False,
        ),
    ] = None,
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
    start, settings = checkpoint_and_overrides(checkpoint, overrides)
    uses: list[Use] = ["adapt", "update", "evaluate"]
    if start is None and not resume:  # the folder of a resumed run records its starting policy
        uses.insert(0, "warm_start")
    options = Given(config, settings, seed, out, resume, trust)
    with open_run(options, uses, lambda config: config.adapt.methods, start) as (run, progress):
        from treeagent import loop
        from treeagent.pipeline.processes import shared_workers

        with shared_workers(run.config):
            print_rows(loop.train(run.config, run, progress, start))


@app.command()
def update(
    method: Annotated[
        Literal["rft", "distil", "dpo", "grpo"],
        typer.Argument(metavar="METHOD", help="Update method: rft, distil, dpo or grpo.", show_default=False),
    ],
    checkpoint: CheckpointName,
    out: Out,
    overrides: Overrides = None,
    config: Config = None,
    seed: Seed = None,
    resume: Resume = True,
    trust: Trust = False,
    trees: Annotated[
        Path | None,
        typer.Option(
            "--trees", metavar="RUN", help="Learn from the trees of this run; by default from those of --out."
        ),
    ] = None,
) -> None:
    """Update a policy once, by one method, from the trees of a run.

    Reads CHECKPOINT and the trees of all rounds, writes RUN/checkpoints/METHOD. To change the settings of the run with
    the trees, use another --out and name that run by --trees; its settings are then the defaults.

    Example: treeagent update dpo runs/shop/checkpoints/base --out runs/dpo50 --trees runs/shop update.dpo.max_steps=50
    """
    from treeagent.pipeline.folder import COLLECTED

    checkpoint_path = find_checkpoint(checkpoint)
    require_trees(trees or out, COLLECTED)  # a run may have trees of evaluations only
    options = Given(config, overrides, seed, out, resume, trust)
    with open_run(options, ["update"], lambda _: [method], checkpoint_path, trees) as (run, progress):
        from treeagent.cli.preflight import require_whole_vocabulary
        from treeagent.pipeline.folder import Run
        from treeagent.pipeline.update import update as update_policy

        source = Run.open(trees) if trees else None
        if source is not None:
            require_whole_vocabulary(source.config, [method])
        [written] = update_policy(run.config, run, progress, checkpoint_path, [method], source)
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
    checkpoint_path = find_checkpoint(checkpoint)
    options = Given(config, overrides, seed, out, resume, trust)
    with open_run(options, ["evaluate"], checkpoint=checkpoint_path) as (run, progress):
        from treeagent.pipeline.evaluate import evaluate as evaluate_policies

        evaluations = [(checkpoint_path, mode) for mode in run.config.evaluate.modes]
        print_rows(evaluate_policies(run.config, run, progress, evaluations))

"""Commands that make runs (quickstart, train, collect, update, eval), and those of world models."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from treeagent.cli.options import (
    CheckpointName,
    Config,
    Out,
    Overrides,
    Resume,
    RunFolder,
    Seed,
    Trust,
    checkpoint_and_overrides,
    chosen_settings,
    find_checkpoint,
    print_alarms,
    print_end,
    print_rows,
    require_trust,
    require_trusted_worlds,
)
from treeagent.pipeline.terminal import Terminal

app = typer.Typer()
world = typer.Typer(help="Fit a world model to a run's steps, and audit it on held-out tasks.", no_args_is_help=True)


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
    settings = chosen_settings(config, overrides, seed, resume, trust, out)
    from treeagent.loop import quickstart as run_quickstart
    from treeagent.pipeline.progress import RichProgress

    print_end(run_quickstart(settings, out, resume=resume, progress=RichProgress()), out)


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
    from treeagent.pipeline import api
    from treeagent.pipeline.progress import RichProgress

    api.collect(settings, out, policy, resume=resume, progress=RichProgress())


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
    start, changes = checkpoint_and_overrides(checkpoint, overrides)
    settings = chosen_settings(config, changes, seed, resume, trust, out, start)
    from treeagent.loop import train as run_train
    from treeagent.pipeline.progress import RichProgress

    print_end(run_train(settings, out, start, resume=resume, progress=RichProgress()), out)


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
    policy = find_checkpoint(checkpoint)
    settings = chosen_settings(config, overrides, seed, resume, trust, out, policy, trees)
    from treeagent.pipeline import api
    from treeagent.pipeline.progress import RichProgress

    written = api.update(settings, out, policy, method, trees=trees, resume=resume, progress=RichProgress())
    print_alarms(out)
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
    settings = chosen_settings(config, overrides, seed, resume, trust, out, policy)
    from treeagent.pipeline import api
    from treeagent.pipeline.progress import RichProgress

    print_rows(api.evaluate(settings, out, policy, resume=resume, progress=RichProgress()))


@world.command("fit")
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
    from treeagent.config import load_config
    from treeagent.pipeline.folder import Run
    from treeagent.pipeline.progress import RichProgress
    from treeagent.pipeline.recipes import find_recipe
    from treeagent.pipeline.world import fit_world

    own = Run.open(run_folder).path / "config.toml"
    require_trust(own, overrides or (), trust)
    settings = load_config(own, overrides or (), world=None if config is None else find_recipe(config))
    require_trusted_worlds(settings, trust)
    with Run.create(run_folder, Run.open(run_folder).config, resume=True) as run:
        written = fit_world(settings, run, RichProgress())
    Terminal().print(f"world model in {written}")


@world.command("eval")
def audit_world_model(
    run_folder: RunFolder,
    overrides: Overrides = None,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    trust: Trust = False,
) -> None:
    """Audit RUN's world model: compare its predictions with the environment's answers on held-out tasks.

    Reads RUN/trees and RUN/checkpoints/world, or the model of the last round, and writes RUN/fidelity.json.

    Example: treeagent world eval runs/shop --json
    """
    from treeagent.pipeline.folder import Run
    from treeagent.pipeline.imagination import world_of
    from treeagent.pipeline.report.show import fidelity_json, fidelity_table
    from treeagent.pipeline.world_audit import audit_world

    run = Run.open(run_folder)
    for file in (run.path / "config.toml", run.path / "world.toml"):
        if file.is_file():
            require_trust(file, overrides or (), trust)
    config, model = world_of(run, overrides or ())
    require_trusted_worlds(config, trust)
    fidelity = audit_world(config, run, model)
    if json:
        Terminal(soft_wrap=True).print(fidelity_json(fidelity))
    else:
        Terminal().print("", fidelity_table(fidelity), sep="\n")

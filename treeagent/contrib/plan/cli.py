"""The command that estimates the cost of a run: plan."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from treeagent.cli.options import Overrides, Trust, find_checkpoint, require_trusted_worlds, trusted_settings
from treeagent.pipeline.terminal import Terminal

if TYPE_CHECKING:  # these modules take seconds to import, which would slow down --help
    from treeagent.cli.preflight import Use

app = typer.Typer()


@app.command()
def plan(
    target: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE.toml|RUN",
            help="A recipe's name, a TOML file, or the folder of a run, beside whose plan stands what it took.",
        ),
    ],
    overrides: Overrides = None,
    command: Annotated[
        Literal["quickstart", "train"] | None,
        typer.Option("--command", help="The command that will run it; by default quickstart, or what made RUN."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="CHECKPOINT", help="The policy that train starts from; by default a warm start makes one."
        ),
    ] = None,
    price: Annotated[
        float | None, typer.Option("--price", min=0, metavar="PER_HOUR", help="Price of an hour of all machines.")
    ] = None,
    measure: Annotated[bool, typer.Option(help="Measure on this machine, for a minute or two.")] = True,
    trust: Trust = False,
) -> None:
    """Estimate the cost of a run: tokens, steps and time of each stage, hours, price and memory.

    Runs a few items of every stage in a temporary folder. Writes nothing else.

    Example: treeagent plan quickstart collect.tasks=200 --price 0.5
    """
    from treeagent.config import load_config
    from treeagent.pipeline.recipes import find_recipe

    path = Path(target)
    run_folder = path if (path / "config.toml").is_file() else None
    file = find_recipe(target) if run_folder is None else run_folder / "config.toml"
    if run_folder is not None:
        config = trusted_settings(run_folder, overrides, trust)
    else:
        config = load_config(file, overrides or ())
        require_trusted_worlds(config, trust)

    from treeagent.cli.preflight import require
    from treeagent.contrib.plan.cost import Shape, modelled_rates, stage_costs
    from treeagent.contrib.plan.measure import measure as measured
    from treeagent.contrib.plan.measure import model_size, this_device
    from treeagent.contrib.plan.report import print_memory, print_plan
    from treeagent.contrib.plan.times import run_costs
    from treeagent.pipeline.folder import Run
    from treeagent.pipeline.machine import fit_to_machine
    from treeagent.pipeline.progress import RichProgress

    run = None if run_folder is None else Run.open(run_folder)
    rounds = run is not None and ("adapt" in run.stages() or run.recorded_checkpoint("collect-1") is not None)
    kind = command or ("train" if rounds or checkpoint is not None else "quickstart")
    start = None if checkpoint is None else find_checkpoint(checkpoint)
    if run is not None and start is None and kind == "train":
        start = run.recorded_checkpoint("start")
    if measure:
        uses: list[Use] = ["collect", "update", "evaluate"] if kind == "quickstart" else ["adapt", "update", "evaluate"]
        methods = config.update.methods if kind == "quickstart" else config.adapt.methods
        require(config, uses if start else ["warm_start", *uses], methods, start)
    config, warning = fit_to_machine(config, start)
    console = Terminal()
    if warning:
        console.print(warning, soft_wrap=True)
    size, device = model_size(config, start), this_device(config)
    if measure:
        rates = measured(config, kind, RichProgress(), start)
    else:
        rates = modelled_rates(config, Shape.assumed(config), size, device)
        if start is not None:
            rates = rates.without_warm_start()
    print_plan(stage_costs(config, kind, rates), console, price=price, actual=None if run is None else run_costs(run))
    print_memory(config, kind, size, rates, device, console)
    if not measure:
        console.print(
            "by formulas alone, with assumed turns and a device of usual speed: expect a factor of two or three",
            style="dim",
            soft_wrap=True,
        )

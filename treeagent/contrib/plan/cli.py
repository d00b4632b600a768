"""``treeagent plan``: what a run will cost."""

from typing import Annotated, Literal

import typer
from rich.table import Table

from treeagent.cli.options import Overrides, find_checkpoint
from treeagent.pipeline.progress import RichProgress
from treeagent.pipeline.terminal import Terminal

app = typer.Typer()


@app.command()
def plan(
    recipe: Annotated[str, typer.Argument(metavar="NAME|FILE.toml", help="A recipe's name or a TOML file.")],
    overrides: Overrides = None,
    command: Annotated[
        Literal["quickstart", "train"], typer.Option("--command", help="The command that will run it.")
    ] = "quickstart",
    checkpoint: Annotated[
        str | None, typer.Option(metavar="CHECKPOINT", help="The policy to start from; by default a warm start's.")
    ] = None,
    price: Annotated[float | None, typer.Option(min=0, metavar="PER_HOUR", help="Price of an hour.")] = None,
) -> None:
    """Estimate tokens, environment steps and time of each stage of a run, from a few items of each.

    Example: treeagent plan quickstart collect.tasks=200 --price 0.5
    """
    from treeagent.contrib.plan.measure import plan as measured
    from treeagent.pipeline.api import load_config

    start = None if checkpoint is None else find_checkpoint(checkpoint)
    costs = measured(load_config(recipe, overrides or ()), command == "train", start, RichProgress())
    table = Table("stage", "items", "minutes", "generated tokens", "environment steps", box=None)
    for cost in costs:
        table.add_row(
            cost.name, f"{cost.items:,.0f} {cost.unit}", f"{cost.seconds / 60:.1f}", f"{cost.tokens:,.0f}",
            f"{cost.steps:,.0f}",
        )  # fmt: skip
    hours = sum(cost.seconds for cost in costs) / 3600
    paid = "" if price is None else f", {hours * price:.2f} at {price:g} an hour"
    Terminal().print(table)
    Terminal().print(f"{hours:.2f} hours{paid}")

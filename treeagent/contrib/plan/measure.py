"""What a run will cost: measure a few items of every stage, then multiply by their number."""

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from treeagent.cli.options import Overrides, find_checkpoint
from treeagent.config import RunConfig
from treeagent.loop import load_config
from treeagent.pipeline.collect import collect
from treeagent.pipeline.evaluate import evaluate
from treeagent.pipeline.opening import Use, opened
from treeagent.pipeline.progress import Progress, RichProgress
from treeagent.pipeline.terminal import Terminal
from treeagent.pipeline.update import TrainJob, learn
from treeagent.pipeline.warm_start import warm_start
from treeagent.types import NothingToLearn

TREES = 8
"""Trees, and test tasks of each mode, that are measured for each worker."""
STEPS = 4
"""Optimiser steps that are measured."""

app = typer.Typer()


@app.command("plan")
def plan_command(
    recipe: Annotated[str, typer.Argument(metavar="NAME|FILE.toml", help="A recipe's name or a TOML file.")],
    overrides: Overrides = None,
    command: Annotated[
        Literal["quickstart", "train"], typer.Option("--command", help="The command that will run it.")
    ] = "quickstart",
    checkpoint: Annotated[
        str | None, typer.Option(metavar="CHECKPOINT", help="The policy to start from; by default a warm start's.")
    ] = None,
) -> None:
    """Estimate tokens, environment steps and time of each stage of a run, from a few items of each.

    Example: treeagent plan quickstart collect.tasks=200
    """
    start = None if checkpoint is None else find_checkpoint(checkpoint)
    costs = plan(load_config(recipe, overrides or ()), command == "train", start, RichProgress())
    table = Table("stage", "items", "minutes", "generated tokens", "environment steps", box=None)
    for cost in costs:
        figures = (f"{cost.seconds / 60:.1f}", f"{cost.tokens:,.0f}", f"{cost.steps:,.0f}")
        table.add_row(cost.name, f"{cost.items:,.0f} {cost.unit}", *figures)
    Terminal().print(table)
    Terminal().print(f"{sum(cost.seconds for cost in costs) / 3600:.2f} hours")


@dataclass(frozen=True, slots=True)
class StageCost:
    """The cost of one stage of a run."""

    name: str
    items: float
    """How many items it has: demonstrations, trees, optimiser steps or test tasks."""
    unit: str
    seconds: float
    """Wall time in all."""
    tokens: float = 0.0
    """Generated tokens in all."""
    steps: float = 0.0
    """Environment steps in all."""


def plan(config: RunConfig, rounds: bool, checkpoint: Path | None, progress: Progress) -> list[StageCost]:
    """The cost of each stage of ``quickstart``, or of ``train`` if ``rounds``, measured on this machine with a policy
    that is trained for a few steps only."""
    costs, warm, tasks = list[StageCost](), config.warm_start, config.collect.tasks
    count, policies = (config.adapt.rounds, 2) if rounds else (1, 1)  # train plays the first and the best policy
    uses: list[Use] = ["collect", "update", "evaluate"]
    with (
        tempfile.TemporaryDirectory(prefix="plan-") as folder,
        opened(_few(config), f"{folder}/run", uses, checkpoint=checkpoint, progress=progress) as (run, shown),
    ):
        few, policy = run.config, checkpoint
        if policy is None:
            started = time.perf_counter()
            policy = warm_start(few, run, shown)
            took, share = time.perf_counter() - started, warm.episodes / few.warm_start.episodes
            facts = run.facts("warm_start")
            trained = float(facts["update"]["seconds"])
            environment = facts["environment_steps"] * share
            seconds = (took - trained) * share
            costs.append(StageCost("demonstrations", warm.episodes, "episodes", seconds, steps=environment))
            steps = warm.training.max_steps or -(-facts["rows"] * share // warm.training.batch_size)
            costs.append(StageCost("warm start", steps, "steps", trained / facts["update"]["steps"] * steps))
        collect(few, run, shown, policy)
        facts, share = run.facts("collect"), tasks / few.collect.tasks * count
        figures = (facts[key] * share for key in ("seconds", "generated_tokens", "environment_steps"))
        costs.append(StageCost("search", tasks * count, "trees", *figures))
        for method in config.adapt.methods if rounds else config.update.methods:
            own = getattr(config.update, method)
            shorter = replace(few.update, **{method: replace(own, max_steps=STEPS, validate_every=STEPS + 1)})
            short, out = replace(few, update=shorter), run.checkpoints / method
            try:
                learn(short, run, shown, [TrainJob(short, policy, method, run.trees, run.collections(), out)])
            except NothingToLearn:
                costs.append(StageCost(f"{method} (the few trees gave no rows)", 0, "steps", 0.0))
                continue
            facts, steps = run.facts(method)["update"], (own.max_steps or -(-tasks // own.batch_size)) * count
            costs.append(StageCost(method, steps, "steps", facts["seconds"] / max(facts["steps"], 1) * steps))
        share = config.evaluate.tasks / few.evaluate.tasks * policies
        for row in evaluate(few, run, shown, [(policy, mode) for mode in few.evaluate.modes]):
            seconds = row["seconds"] * share / max(few.workers, 1)
            tokens, environment = row["generated_tokens"] * share, row["environment_steps"] * share
            name, played = f"evaluation, {row['mode']}", config.evaluate.tasks * policies
            costs.append(StageCost(name, played, "tasks", seconds, tokens, environment))
    return costs


def _few(config: RunConfig) -> RunConfig:
    """The settings with few items of each stage."""
    count = TREES * max(config.workers, 1)
    warm = config.warm_start
    training = replace(warm.training, max_steps=STEPS)
    return replace(
        config,
        warm_start=replace(warm, episodes=min(warm.episodes, 10 * count), training=training),
        collect=replace(config.collect, tasks=min(config.collect.tasks, count)),
        update=replace(config.update, validation_tasks=1),
        evaluate=replace(config.evaluate, tasks=min(config.evaluate.tasks, count)),
    )

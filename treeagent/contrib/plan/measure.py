"""What a run will cost: measure a few items of every stage, then multiply by their number."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from treeagent.cli.options import Overrides, find_checkpoint
from treeagent.config import Method, RunConfig
from treeagent.loop import load_config
from treeagent.pipeline.collect import collect
from treeagent.pipeline.evaluate import evaluate
from treeagent.pipeline.folder import Run
from treeagent.pipeline.opening import opened
from treeagent.pipeline.progress import Progress, RichProgress
from treeagent.pipeline.rows import TrainJob
from treeagent.pipeline.terminal import Terminal
from treeagent.pipeline.update import learn
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
    price: Annotated[float | None, typer.Option(min=0, metavar="PER_HOUR", help="Price of an hour.")] = None,
) -> None:
    """Estimate tokens, environment steps and time of each stage of a run, from a few items of each.

    Example: treeagent plan quickstart collect.tasks=200 --price 0.5
    """
    start = None if checkpoint is None else find_checkpoint(checkpoint)
    costs = plan(load_config(recipe, overrides or ()), command == "train", start, RichProgress())
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
    methods = config.adapt.methods if rounds else config.update.methods
    with tempfile.TemporaryDirectory(prefix="plan-") as folder:
        few = _few(config)
        with opened(
            few, Path(folder) / "run", ["collect", "update", "evaluate"], checkpoint=checkpoint, progress=progress
        ) as (run, shown):
            few = run.config
            costs, policy = _warm_start(config, few, run, shown) if checkpoint is None else ([], checkpoint)
            count = config.adapt.rounds if rounds else 1
            searched = _search(config, few, run, shown, policy)
            updated = [_update(config, few, run, shown, policy, method) for method in methods]
            costs += [_times(cost, count) for cost in [searched, *updated]]
            policies = 2 if rounds else 1  # the first and the best are played in every mode
            return [*costs, *(_times(cost, policies) for cost in _evaluate(config, few, run, shown, policy))]


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


def _warm_start(config: RunConfig, few: RunConfig, run: Run, progress: Progress) -> tuple[list[StageCost], Path]:
    started = time.perf_counter()
    policy = warm_start(few, run, progress)
    took, facts = time.perf_counter() - started, run.facts("warm_start")
    trained = float(facts["update"]["seconds"])
    share = config.warm_start.episodes / few.warm_start.episodes
    shown = StageCost(
        "demonstrations", config.warm_start.episodes, "episodes", (took - trained) * share,
        steps=facts["environment_steps"] * share,
    )  # fmt: skip
    steps = config.warm_start.training.max_steps or _steps(facts["rows"] * share, config.warm_start.training.batch_size)
    return [shown, StageCost("warm start", steps, "steps", trained / facts["update"]["steps"] * steps)], policy


def _search(config: RunConfig, few: RunConfig, run: Run, progress: Progress, policy: Path) -> StageCost:
    collect(few, run, progress, policy)
    facts, share = run.facts("collect"), config.collect.tasks / few.collect.tasks
    seconds, tokens, steps = (facts[key] * share for key in ("seconds", "generated_tokens", "environment_steps"))
    return StageCost("search", config.collect.tasks, "trees", seconds, tokens, steps)


def _update(config: RunConfig, few: RunConfig, run: Run, progress: Progress, policy: Path, method: Method) -> StageCost:
    own = getattr(config.update, method)
    short = replace(few.update, **{method: replace(own, max_steps=STEPS, validate_every=STEPS + 1)})
    try:
        shortly, names = replace(few, update=short), run.collections()
        learn(shortly, run, progress, [TrainJob(shortly, policy, method, run.trees, names, run.checkpoints / method)])
    except NothingToLearn:
        return StageCost(f"{method} (the few trees gave no rows)", 0, "steps", 0.0)
    facts = run.facts(method)["update"]
    steps = own.max_steps or _steps(config.collect.tasks, own.batch_size)
    return StageCost(method, steps, "steps", facts["seconds"] / max(facts["steps"], 1) * steps)


def _evaluate(config: RunConfig, few: RunConfig, run: Run, progress: Progress, policy: Path) -> Sequence[StageCost]:
    rows = evaluate(few, run, progress, [(policy, mode) for mode in few.evaluate.modes])
    share, workers = config.evaluate.tasks / few.evaluate.tasks, max(few.workers, 1)
    return [
        StageCost(
            f"evaluation, {row['mode']}", config.evaluate.tasks, "tasks", row["seconds"] * share / workers,
            row["generated_tokens"] * share, row["environment_steps"] * share,
        )
        for row in rows
    ]  # fmt: skip


def _steps(rows: float, batch_size: int) -> float:
    return -(-rows // batch_size)


def _times(cost: StageCost, count: int) -> StageCost:
    return replace(
        cost, items=cost.items * count, seconds=cost.seconds * count, tokens=cost.tokens * count,
        steps=cost.steps * count,
    )  # fmt: skip

"""``treeagent curriculum``: search-and-adapt on stages of growing difficulty."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from treeagent.cli.options import (
    Config,
    Out,
    Overrides,
    Resume,
    Seed,
    Trust,
    checkpoint_and_overrides,
    chosen_settings,
    print_end,
)
from treeagent.config import RunConfig
from treeagent.contrib.curriculum.stages import Curriculum, Stage
from treeagent.loop import compare
from treeagent.pipeline.collect import batches, collect
from treeagent.pipeline.evaluate import EvaluationJob, play_jobs
from treeagent.pipeline.folder import COLLECTED, Run
from treeagent.pipeline.opening import opened
from treeagent.pipeline.outcomes import Row
from treeagent.pipeline.progress import Progress, RichProgress
from treeagent.pipeline.rounds import RoundHistory, begin, finish_round, update_round
from treeagent.seams import checked
from treeagent.types import UserError

app = typer.Typer()


@app.command()
def curriculum(
    stages: Annotated[Path, typer.Argument(metavar="STAGES.toml", help="The stages, the easiest first.")],
    checkpoint: Annotated[
        str | None,
        typer.Argument(metavar="[CHECKPOINT]", help="The policy to start from; by default a warm start makes one."),
    ] = None,
    out: Out = Path("runs/curriculum"),
    overrides: Overrides = None,
    config: Config = None,
    seed: Seed = None,
    resume: Resume = False,
    trust: Trust = False,
) -> None:
    """Search and learn in rounds, as train does, on tasks that grow harder as the policy succeeds.

    Example: treeagent curriculum stages.toml --config envs/toolbox --out runs/curriculum
    """
    start, changes = checkpoint_and_overrides(checkpoint, overrides)
    settings = chosen_settings(config, changes, seed, resume, trust, out, start)
    print_end(train(settings, out, read_curriculum(stages), start, resume=resume, progress=RichProgress()), out)


def read_curriculum(file: Path) -> Curriculum:
    """The stages of a TOML file."""
    try:
        return checked(Curriculum, tomllib.loads(file.read_text()), str(file))  # type: ignore[no-any-return]
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"the stages in {file} cannot be read ({error}): give a TOML file") from error


def train(
    config: RunConfig,
    out: str | Path,
    curriculum: Curriculum,
    checkpoint: Path | None = None,
    *,
    resume: bool = True,
    progress: Progress | None = None,
) -> list[Row]:
    """As ``loop.train``, where each round searches new tasks of one stage. The warm start imitates tasks of the first
    stage. Updates validate on tasks of ``environment.options``, and so does the evaluation."""
    methods = config.adapt.methods
    with opened(
        config, out, ["update", "evaluate"], methods=methods, checkpoint=checkpoint, resume=resume, progress=progress
    ) as (run, shown):
        config, stages, count = run.config, curriculum.stages, run.config.collect.tasks
        policy, stage = begin(at(config, stages[0]), run, shown, checkpoint), 0
        history = RoundHistory(policy)
        for number in range(1, config.adapt.rounds + 1):
            stage = choose(config, run, shown, curriculum, policy, number, stage)
            tasks = range((number - 1) * count, number * count)
            collect(at(config, stages[stage]), run, shown, policy, f"{COLLECTED}-{number}", tasks)
            policy = update_round(config, run, shown, policy, number)
            finish_round(config, run, shown, policy, number, {}, history)
        return compare(config, run, shown, history)


def at(config: RunConfig, stage: Stage) -> RunConfig:
    """The settings with the tasks of a stage."""
    options = {**config.environment.options, **stage.options}
    return replace(config, environment=replace(config.environment, options=options))


def choose(
    config: RunConfig, run: Run, progress: Progress, curriculum: Curriculum, policy: Path, number: int, stage: int
) -> int:
    """The index of the stage of round ``number``, by the greedy success of the policy on validation tasks of stages.
    The choice is recorded in the run."""
    name = f"curriculum-{number}"

    def success(index: int) -> float:
        played, staged = f"{name}-{index}", at(config, curriculum.stages[index])
        run.record_checkpoint(played, policy)
        jobs = [
            EvaluationJob(staged, policy, played, batch, tasks, run.trees, "greedy", run.episodes, "validation")
            for batch, tasks in enumerate(batches(config, run, range(config.update.validation_tasks)))
        ]
        [row] = play_jobs(run, progress, {played: jobs}, config, played)
        return float(row["success"])

    if not run.is_done(name):
        chosen, reached = curriculum.next_stage(stage, success)
        run.finish(name, {"index": chosen, "name": curriculum.stages[chosen].name, "success": reached})
    return int(run.facts(name)["index"])

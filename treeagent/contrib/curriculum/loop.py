"""``treeagent curriculum``: search-and-adapt on stages of growing difficulty."""

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

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
from treeagent.cli.runs import Start
from treeagent.config import RunConfig
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
Share = Annotated[float, Field(ge=0, le=1)]
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_STRICT)
class Stage:
    """The tasks that the rounds of a stage search."""

    name: str
    """Name of the stage in stages.json and in messages."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the environment that differ from ``environment.options``, such as the length of a task."""


@dataclass(frozen=True, config=_STRICT)
class Curriculum:
    """Stages of a curriculum, the easiest first."""

    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]
    advance_at: Share = 0.7
    """Success at which a round goes on to the next stage: the fraction of ``update.validation_tasks`` of the stage that
    the policy solves greedily before the round."""
    fall_back_at: Share = 0.2
    """Success below which a round returns to the stage before."""

    def next_stage(self, stage: int, success: Callable[[int], float]) -> tuple[int, float]:
        """The index of the next round's stage, and the success of the policy in it. Stages that the policy has mastered
        are passed.

        Args:
            stage: index of the present stage.
            success: measures the policy on the tasks of a stage, as a fraction of solved tasks.
        """
        reached = success(stage)
        if reached < self.fall_back_at and stage > 0:
            return stage - 1, success(stage - 1)
        while reached >= self.advance_at and stage < len(self.stages) - 1:
            stage += 1
            reached = success(stage)
        return stage, reached


@app.command()
def curriculum(
    stages: Annotated[Path, typer.Argument(metavar="STAGES.toml", help="The stages, the easiest first.")],
    checkpoint: Start = None,
    out: Out = Path("runs/curriculum"),
    overrides: Overrides = None,
    config: Config = None,
    seed: Seed = None,
    resume: Resume = False,
    trust: Trust = False,
) -> None:
    """Search and learn in rounds, as train does, on tasks that grow harder as the policy succeeds.

    Example: treeagent curriculum stages.toml --config envs/blocks --out runs/curriculum
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

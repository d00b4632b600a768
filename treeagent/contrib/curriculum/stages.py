"""A curriculum: the first rounds search easy tasks, and later rounds harder ones once the policy succeeds."""

from collections.abc import Callable
from pathlib import Path

from treeagent.config import AdaptConfig, RunConfig
from treeagent.pipeline.evaluate import greedy_validation
from treeagent.pipeline.folder import Run
from treeagent.pipeline.progress import Progress


def next_stage(settings: AdaptConfig, stage: int, success: Callable[[int], float]) -> tuple[int, float]:
    """The stage of the next round, and the success of the policy in it.

    Stages that the policy has mastered (``advance_at``) are passed. If it fails in the present stage
    (``fall_back_at``), the next round returns to the stage before.

    Args:
        stage: index of the present stage in ``adapt.stages``.
        success: measures the policy on the tasks of a stage, as a fraction of solved tasks.
    """
    reached = success(stage)
    if reached < settings.fall_back_at and stage > 0:
        return stage - 1, success(stage - 1)
    while reached >= settings.advance_at and stage < len(settings.stages) - 1:
        stage += 1
        reached = success(stage)
    return stage, reached


def choose_stage(config: RunConfig, run: Run, progress: Progress, checkpoint: Path, number: int) -> None:
    """Choose the stage of round ``number`` by the greedy success of the policy that is going to search, on validation
    tasks of the stages. Nothing is done without ``adapt.stages``."""
    name = _stage_name(number)
    if not config.adapt.stages or run.is_done(name):
        return

    def success(stage: int) -> float:
        tasks_of = config.at_stage(stage).environment
        return greedy_validation(config, run, progress, checkpoint, f"{name}-{stage}", tasks_of)

    stage, reached = next_stage(config.adapt, round_stage(run, number - 1) or 0, success)
    run.finish(name, {"index": stage, "name": config.adapt.stages[stage].name, "success": reached})


def round_stage(run: Run, number: int) -> int | None:
    """Index of the stage that ``choose_stage`` chose for a round; None without a curriculum."""
    index: int | None = run.stages().get(_stage_name(number), {}).get("index")
    return index


def curriculum_figures(run: Run, number: int) -> dict[str, float]:
    """Metrics of a round: the index of its stage, and the policy's success in that stage before the round. Empty
    without a curriculum."""
    chosen = run.stages().get(_stage_name(number))
    return {"curriculum_stage": chosen["index"], "curriculum_success": chosen["success"]} if chosen else {}


def _stage_name(number: int) -> str:
    return f"curriculum-{number}"

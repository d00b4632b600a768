"""Evaluate policies on held-out tasks: the rows of a comparison, and the worker that plays one batch of tasks."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import orjson

from treeagent.config import Mode, RunConfig
from treeagent.imagination.load import planned_in, world_model
from treeagent.imagination.verify import call_imagined
from treeagent.run.folder import Run
from treeagent.run.metrics import Emit
from treeagent.run.outcomes import (
    Outcome,
    PlayedBatch,
    Row,
    forget_batches,
    keep_batch,
    kept_batch,
    summarise,
    went_nowhere,
)
from treeagent.run.progress import Progress
from treeagent.search.record import to_record
from treeagent.stages.build import (
    environment,
    in_turns,
    leaf_value,
    load_actors,
    play_on,
    tasks_at,
)
from treeagent.stages.play import play, replan
from treeagent.stages.search import BatchJob, batches
from treeagent.store import write_atomic, write_shard
from treeagent.types import derive_seed
from treeagent.workers.processes import run_jobs


def evaluate(config: RunConfig, run: Run, progress: Progress, checkpoint: Path) -> list[Row]:
    """One checkpoint in every mode of ``evaluate.modes``."""
    return compare(config, run, progress, [checkpoint])


def compare(config: RunConfig, run: Run, progress: Progress, checkpoints: Sequence[Path]) -> list[Row]:
    """A row per (policy, mode), on the same held-out tasks; written to ``run.results``."""
    return measure(config, run, progress, [(each, mode) for each in checkpoints for mode in config.evaluate.modes])


def measure(config: RunConfig, run: Run, progress: Progress, wanted: Sequence[tuple[Path, Mode]]) -> list[Row]:
    """A row for each checkpoint and mode that is wanted; written to ``run.results``. Batches on disk are kept.

    Raises:
        UserError: of a row no episode took a step, because all failed. The row is not done.
    """
    for checkpoint, mode in wanted:
        run.take(_evaluation(checkpoint, mode), checkpoint)
    wholes = {
        _evaluation(checkpoint, mode): batches(
            config, run, checkpoint, checkpoint.name, range(config.evaluate.tasks), mode
        )
        for checkpoint, mode in wanted
    }
    jobs: list[BatchJob] = []
    played: dict[str, dict[int, PlayedBatch]] = {}
    for stage, whole in wholes.items():
        if run.is_done(stage):
            forget_batches(run.outcomes, stage, range(len(whole)))  # a kill may have come in between
            continue
        jobs += whole
        found = {job.index: kept_batch(run.outcomes, stage, job.index, job.tasks, run.trees) for job in whole}
        played[stage] = {index: batch for index, batch in found.items() if batch is not None}
        _finish_row(run, stage, whole, played[stage])
    waiting = [job for job in jobs if job.index not in played[_stage(job)]]
    waiting.sort(key=lambda job: job.mode == "greedy")  # the longest first, so that no worker ends alone
    with progress.track("evaluate", sum(len(job.tasks) for job in jobs)) as advance:
        advance(sum(len(job.tasks) for job in jobs) - sum(len(job.tasks) for job in waiting))
        for job, (outcomes, seconds) in run_jobs(evaluate_batch, waiting, config):
            stage, shard = _stage(job), replace(job, name=_stage(job)).shard
            batch = PlayedBatch(
                tuple(job.tasks), tuple(outcomes), seconds, shard if (run.trees / shard).exists() else ""
            )
            if not went_nowhere(outcomes):  # else what they all failed by may be mended before they are played again
                keep_batch(run.outcomes, stage, job.index, batch)
            played[stage][job.index] = batch
            advance(len(job.tasks), {"": f"{job.name} {job.mode}"})
            _finish_row(run, stage, wholes[stage], played[stage])
    rows = [run.facts(_evaluation(checkpoint, mode)) for checkpoint, mode in wanted]
    write_atomic(run.results, orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return rows


def _finish_row(run: Run, stage: str, whole: Sequence[BatchJob], played: Mapping[int, PlayedBatch]) -> None:
    """If all batches of the row are played."""
    if len(played) < len(whole):
        return
    outcomes = [outcome for job in whole for outcome in played[job.index].outcomes]
    job = whole[0]
    row = summarise(job.name, job.mode, outcomes, sum(batch.seconds for batch in played.values()))
    if job.mode != "greedy" and (limit := job.config.search.limits.generated_tokens) is not None:
        row["token_limit"] = limit
    run.finish(stage, row)
    forget_batches(run.outcomes, stage, range(len(whole)))


def _evaluation(checkpoint: Path, mode: Mode) -> str:
    """The stage's name."""
    return f"evaluate-{checkpoint.name}-{mode}"


def _stage(job: BatchJob) -> str:
    return _evaluation(job.checkpoint, job.mode)


def evaluate_batch(job: BatchJob, emit: Emit) -> tuple[list[Outcome], float]:
    """Play held-out tasks; trees of a search are stored. Returns outcomes in the tasks' order, and seconds."""
    started = time.perf_counter()
    config = job.config
    env = environment(config)
    actors, whole = load_actors(job.checkpoint, config)
    tasks, seed = tasks_at(env, job.split, job.tasks), derive_seed(config.seed, "evaluate")
    verified = in_turns(play_on(env, config, "evaluate"), config, whole.grammar)
    imagines = bool(config.evaluate.world) and job.mode != "greedy"
    with world_model(*planned_in(config), env) if imagines else nullcontext() as model:
        blind = in_turns(model or play_on(env, config, "evaluate", reveal_reward=False), config, whole.grammar)
        # A rollout cannot judge itself where rewards are withheld: without a head nothing judges there.
        if actors.value is not None or imagines:
            actors = replace(actors, value=leaf_value(actors.value, whole, blind, config))
        playing = replan if imagines else play
        outcomes, trees = asyncio.run(
            playing(actors, blind, verified, tasks, job.mode, config.evaluate, config.search, seed)
        )
    whole.forget()
    if env.origin == "imagined":
        call_imagined(trees)
    seconds = time.perf_counter() - started
    if trees and job.trees is not None:
        write_shard(job.trees, f"evaluate-{job.name}-{job.mode}", job.index, map(to_record, trees))
    return outcomes, seconds

"""Evaluate policies on held-out tasks: the driver makes the rows of a comparison, a worker plays one batch of tasks."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import orjson

from treeagent.agent.checkpoint import has_head
from treeagent.config import Mode, RunConfig
from treeagent.pipeline import build
from treeagent.pipeline.collect import BatchJob, batches
from treeagent.pipeline.folder import Run
from treeagent.pipeline.imagination import with_planning_world, world_model
from treeagent.pipeline.metrics import Emit, Event, heartbeat
from treeagent.pipeline.outcomes import (
    Outcome,
    PlayedBatch,
    Row,
    all_failed_at_start,
    evaluation_stage,
    limits_in_words,
    limits_met,
    load_batch,
    save_batch,
    summarise,
)
from treeagent.pipeline.play import OnEnd, play, playable_together, replan
from treeagent.pipeline.processes import run_jobs
from treeagent.pipeline.progress import Progress
from treeagent.pipeline.report.describe import ending, observation, steps
from treeagent.search.decide import best_weight
from treeagent.search.node import Tree
from treeagent.search.record import from_record
from treeagent.store import read_as, shards, write_atomic
from treeagent.types import Split
from treeagent.visible import visible

_FIRST = 3
"""Episodes after which a limit that cuts most of them off is told."""
_TRANSCRIPT = "transcript"
"""Name of the events that hold a transcript, of which the first is shown."""
_SHOWN = 400
"""Characters of a turn or an observation in the transcript of the first episode."""


@dataclass(frozen=True, slots=True)
class EvaluationJob(BatchJob):
    """A batch of held-out tasks to play."""

    mode: Mode = "greedy"
    episodes: Path | None = None
    """Folder that the episodes are written to; None discards them."""
    split: Split = "test"

    def outcomes(self, run: Run) -> Path:
        """The file of a finished batch until the evaluation is complete."""
        return run.outcomes / f"{self.name}-{self.index:05d}.json"

    def is_stored(self, run: Run) -> bool:
        """Whether the episodes and, with a search, the trees are on disk."""
        folders = (run.episodes,) if self.mode == "greedy" else (run.episodes, run.trees)
        return all(shards(folder, self.name, self.index) for folder in folders)


def evaluate(config: RunConfig, run: Run, progress: Progress, evaluations: Sequence[tuple[Path, Mode]]) -> list[Row]:
    """Evaluate each pair of checkpoint and mode. Returns one row for each and writes the rows to ``run.results``.
    Batches that are on disk are not played again, unless a file of the evaluation is missing."""
    searched = dict.fromkeys(checkpoint for checkpoint, mode in evaluations if mode != "greedy")
    for name in [] if config.evaluate.world else [each.name for each in searched if not has_head(each)]:
        progress.warn(
            f"{name} has no value head, and evaluation withholds rewards: best-of-N and tree search take the end that "
            "the policy finds likeliest. `treeagent update` fits a head"
        )
    weights = validated_weights(config, run, progress, evaluations)
    jobs_by_stage: dict[str, list[EvaluationJob]] = {}
    for checkpoint, mode in evaluations:
        stage = evaluation_stage(checkpoint.name, mode)
        weight = weights.get((checkpoint, mode), config.evaluate.weight)
        weighed = replace(config, evaluate=replace(config.evaluate, likelihood_weight=weight))
        jobs_by_stage[stage] = [
            EvaluationJob(weighed, checkpoint, stage, index, batch, run.trees, mode, run.episodes)
            for index, batch in enumerate(batches(config, run, config.evaluate.places))
        ]
        run.record_checkpoint(stage, checkpoint)
    rows = play_jobs(run, progress, jobs_by_stage, config, "evaluate")
    write_atomic(run.results, orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return rows


def validated_weights(
    config: RunConfig, run: Run, progress: Progress, evaluations: Sequence[tuple[Path, Mode]]
) -> dict[tuple[Path, Mode], float]:
    """The λ of each search whose choice of ends solves the most validation tasks, if the settings ask for it."""
    if config.evaluate.likelihood_weight != "validation":
        return {}
    jobs_by_stage: dict[str, list[EvaluationJob]] = {}
    searches = {f"weigh-{each.name}-{mode}": (each, mode) for each, mode in evaluations if mode != "greedy"}
    for stage, (checkpoint, mode) in searches.items():
        jobs_by_stage[stage] = [
            EvaluationJob(config, checkpoint, stage, index, batch, run.trees, mode, run.episodes, split="validation")
            for index, batch in enumerate(batches(config, run, range(config.update.validation_tasks)))
        ]
        run.record_checkpoint(stage, checkpoint)
    play_jobs(run, progress, jobs_by_stage, config, "weigh")
    return {
        search: best_weight(list(read_as(from_record, run.trees, stage)), config.evaluate.decision)
        for stage, search in searches.items()
    }


def play_jobs(
    run: Run, progress: Progress, jobs_by_stage: Mapping[str, list[EvaluationJob]], config: RunConfig, work: str
) -> list[Row]:
    """Play the jobs of each stage whose batches are not on disk yet. Returns one row for each stage."""
    finished: dict[str, dict[int, PlayedBatch]] = {stage: {} for stage in jobs_by_stage}

    def add_batch(job: EvaluationJob, batch: PlayedBatch) -> None:
        played = finished[job.name]
        played[job.index] = batch
        if len(played) < len(jobs_by_stage[job.name]):
            return
        outcomes = [outcome for _, (each, _) in sorted(played.items()) for outcome in each]
        row = summarise(job.checkpoint.name, job.mode, outcomes, sum(seconds for _, seconds in played.values()))
        if job.mode != "greedy" and (limit := job.config.search.limits.generated_tokens) is not None:
            row["token_limit"] = limit
            row["planning_tokens"] = sum(outcome.planning_tokens for outcome in outcomes)
        if job.mode != "greedy":
            row["likelihood_weight"] = job.config.evaluate.weight
        run.finish(job.name, row)

    waiting: list[EvaluationJob] = []
    for stage, jobs in jobs_by_stage.items():
        if not all(job.is_stored(run) for job in jobs):
            run.forget(stage)
        for job in [] if run.is_done(stage) else jobs:
            batch = load_batch(job.outcomes(run)) if job.is_stored(run) else None
            if batch is None:
                waiting.append(job)
            else:
                add_batch(job, batch)
    waiting.sort(key=lambda job: job.mode != "greedy")  # a user sees the first episode soon
    tokens, told = dict[tuple[str, int], int](), set[str]()

    def figures(stage: str) -> dict[str, str]:
        spent = sum(tokens.values())
        return {"": stage.removeprefix("evaluate-")} | ({"tokens": f"{spent:,}"} if spent else {})

    with progress.track(work, sum(len(job.tasks) for job in waiting)) as advance:

        def on_event(event: Event) -> None:
            once = event.name if event.name == _TRANSCRIPT else event.told
            if once and once not in told:
                told.add(once)
                progress.warn(event.told)
            if event.tokens:
                tokens[event.name, event.index] = event.tokens
                advance(0, figures(event.name))

        for job, batch in run_jobs(evaluate_batch, waiting, config, on_event):
            # The user may mend what made every episode of a batch fail before its first step, and resume.
            if not all_failed_at_start(batch[0]):
                save_batch(job.outcomes(run), batch)
            advance(len(job.tasks), figures(job.name))
            add_batch(job, batch)
    for job in chain.from_iterable(jobs_by_stage.values()):
        job.outcomes(run).unlink(missing_ok=True)
    with suppress(OSError):  # it holds batches of another evaluation, or does not exist
        run.outcomes.rmdir()
    return [run.facts(stage) for stage in jobs_by_stage]


def evaluate_batch(job: EvaluationJob, emit: Emit) -> PlayedBatch:
    """Play a batch of held-out tasks, and store the episodes and, with a search, its trees."""
    started, config = time.perf_counter(), job.config
    env = build.environment(config)
    actors, policy = build.load_actors(job.checkpoint, config)
    real = build.env_dynamics(build.instances(config), config, "evaluate")
    hidden = build.env_dynamics(build.instances(config), config, "evaluate", reveal_reward=False)
    verified = build.with_split_steps(real, config, policy.grammar)
    imagines = bool(config.evaluate.world) and job.mode != "greedy"
    with world_model(*with_planning_world(config), env) if imagines else nullcontext() as model:
        blind = build.with_split_steps(model or hidden, config, policy.grammar)
        tasks = build.tasks_at(env, job.split, job.tasks)
        with heartbeat(emit, job.name, job.index, policy.generator.usage) as send:
            on_end = _first_episodes(job, send)
            played = [
                asyncio.run((replan if imagines else play)(actors, blind, verified, group, job.mode, config, on_end))
                for group in playable_together(env, config.environment.parallel, tasks)
            ]
    policy.forget()
    outcomes, trees, episodes = (list(chain.from_iterable(parts)) for parts in zip(*played, strict=True))
    for outcome in outcomes:
        # In a world model, the imagined ends say nothing about success in the environment.
        outcome.end_shows_success = env.only_success_ends and job.mode != "greedy" and not imagines
    seconds = time.perf_counter() - started
    if trees and job.trees is not None:
        job.write(job.trees, trees)
    if job.episodes is not None:
        job.episodes.mkdir(exist_ok=True)
        job.write(job.episodes, episodes)
    return outcomes, seconds


def _first_episodes(job: EvaluationJob, send: Emit) -> OnEnd:
    """A function of each episode that ends, which tells what a user should see before the end of an evaluation: the
    first greedy episode, and what is wrong with most of the first ones."""
    first, met, enough = list[Outcome](), Counter[str](), min(_FIRST, len(job.tasks))

    def on_end(outcome: Outcome, episode: Tree) -> None:
        first.append(outcome)
        if len(first) > enough:
            return
        met.update(limits_met(outcome, episode, None, job.config.search.limits))
        if job.mode == "greedy" and job.index == 0 and len(first) == 1:
            send(Event(_TRANSCRIPT, told=transcript(episode)))
        if len(first) == enough:
            turns, invalid = (sum(getattr(each, name) for each in first) for name in ("steps", "invalid"))
            most = {limit: count for limit, count in met.items() if count > enough / 2}
            for sentence in limits_in_words(most, enough):
                send(Event(job.name, told=f"of the first {enough} episodes: {sentence}"))
            if invalid > turns / 2:
                said = (
                    f"of the first {turns} turns, {invalid} hold no call that the environment takes: show the model "
                    "how (policy.shots=2), or make it write calls alone (policy.structured=true)"
                )
                send(Event(job.name, told=said))

    return on_end


def transcript(episode: Tree) -> str:
    """The episode in words: its task, each turn of the agent and what the environment answered."""
    lines, node = [f"the first episode, task {episode.task.id}: {episode.task.prompt}"], episode.root
    for edge in steps(episode):
        lines.append(f"  agent: {edge.action.text.strip():.{_SHOWN}}")
        if edge.child is not None:
            lines.append(f"  environment: {observation(node, edge.child).strip():.{_SHOWN}}")
            node = edge.child
    return visible("\n".join((*lines, f"  {ending(episode)}")), lines=True)

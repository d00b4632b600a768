"""The story of a run: imitate, search, learn from the trees, compare. Every stage is recorded and resumes."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from treeagent.actors import value_head
from treeagent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from treeagent.config import Method, RunConfig, dump_config
from treeagent.evaluate import Mode, summarise, went_nowhere
from treeagent.health import return_spread
from treeagent.jobs import TrainJob, WaveJob, evaluate_wave, read_trees, sample_value_rows, search_wave
from treeagent.learners.value import fit_value
from treeagent.outcomes import PlayedWave, forget_waves, keep_wave, kept_wave
from treeagent.pool import run_jobs
from treeagent.progress import Progress
from treeagent.report.html import write_report
from treeagent.run import COLLECTED, Run
from treeagent.search.node import Tree
from treeagent.search.record import from_record
from treeagent.store import read_as, shards, write_atomic
from treeagent.telemetry import Cost, Event, logged
from treeagent.train_job import train
from treeagent.types import Refused
from treeagent.warm_start import warm_start

Row = dict[str, Any]


def quickstart(config: RunConfig, run: Run, progress: Progress) -> list[Row]:
    """A better agent and the evidence: warm start, search, one update a method, evaluation of them all."""
    refuse_held(config, config.update.methods)
    warm = warm_start(config, run, progress)
    collect(config, run, progress, warm)
    base = fit_base(config, run, progress, warm)
    updated = update(config, run, progress, base, config.update.methods)
    rows = compare(config, run, progress, [base, *updated])
    report(config, run, rows)
    return rows


def collect(config: RunConfig, run: Run, progress: Progress, checkpoint: Path) -> None:
    """Search training tasks, one tree each, a shard a wave; waves on disk are kept."""
    search_waves(config, run, progress, waves(config, run, checkpoint, COLLECTED, range(config.collect.tasks)))


def search_waves(config: RunConfig, run: Run, progress: Progress, jobs: Sequence[WaveJob], free: int = 0) -> None:
    """One stage of searching, named as its jobs are. Tasks of which nothing can be learned are made up for by further
    ones, as ``collect.resample`` says: those after the jobs', and from the place ``free`` on."""
    name, checkpoint = jobs[0].name, jobs[0].checkpoint
    run.take(name, checkpoint)
    if run.is_done(name) and len(shards(run.trees, name)) == len(run.facts(name)["waves"]):
        return
    started = time.perf_counter()
    spent = Cost()
    places: list[list[int]] = []
    for _ in range(1 + config.collect.resample):
        cost, ended = _search(config, run, progress, jobs, spent)
        spent.add(cost)
        places += [list(job.tasks) for job in jobs if (run.trees / job.shard).exists()]
        missing = _uninformative(jobs) if config.collect.resample else 0
        if ended or not missing:
            break
        start = max(free, *(1 + place for job in jobs for place in job.tasks))
        jobs = waves(config, run, checkpoint, name, range(start, start + missing), first=jobs[-1].index + 1)
    facts = {"tasks": sum(map(len, places)), "waves": places}
    run.finish(name, facts | spent.metrics(time.perf_counter() - started))


def _search(
    config: RunConfig, run: Run, progress: Progress, jobs: Sequence[WaveJob], before: Cost
) -> tuple[Cost, bool]:
    """What these waves cost, and whether a limit of the whole collection was reached. Which waves stay does not depend
    on which were finished first: the limit counts them in order, and those beyond it are removed."""
    name, limits = jobs[0].name, config.collect.limits
    stored = {path.name for path in shards(run.trees, name)}
    waiting = [job for job in jobs if job.shard not in stored]
    finished = {job.index: _stored_cost(job) for job in jobs if job.shard in stored}
    running: dict[int, Cost] = {}
    started = time.perf_counter()

    def spent() -> Cost:
        whole = Cost()
        for cost in [*list(running.values()), *list(finished.values())]:
            whole.add(cost)
        return whole

    def last_wave() -> int | None:
        """The index of the wave with which the limit is reached, as far as the waves before it are finished."""
        budget = replace(before.budget)
        for job in jobs if limits is not None else ():
            if job.index not in finished:
                return None
            budget.add(finished[job.index].budget)
            if limits is not None and limits.reached(budget):
                return job.index
        return None

    last = last_wave()
    with progress.track("search", sum(len(job.tasks) for job in jobs)) as advance:
        advance(sum(len(job.tasks) for job in jobs) - sum(len(job.tasks) for job in waiting))

        def on_event(event: Event) -> None:
            if event.cost is not None and event.index not in finished:
                running[event.index] = event.cost
                advance(0, spent().figures(time.perf_counter() - started))

        for job, cost in run_jobs(search_wave, waiting if last is None else [], config, on_event):
            running.pop(job.index, None)
            finished[job.index] = cost
            seconds = time.perf_counter() - started
            advance(len(job.tasks), spent().figures(seconds))
            run.log(name, {"tasks": len(job.tasks), **spent().metrics(seconds)})
            last = last_wave()
            if last is not None:
                break
    for job in jobs if last is not None else ():
        if last is not None and job.index > last:
            finished.pop(job.index, None)
            (run.trees / job.shard).unlink(missing_ok=True)
    running.clear()
    return spent(), last is not None


def _stored_cost(job: WaveJob) -> Cost:
    """What a wave that is on disk has cost, as far as its trees tell."""
    assert job.trees is not None
    cost = Cost()
    for tree in read_as(from_record, job.trees, job.name, job.index):
        cost.add(Cost(trees=1, failed=int(bool(tree.error)), budget=tree.budget))
    return cost


def _uninformative(jobs: Sequence[WaveJob]) -> int:
    """Trees of these waves whose returns are all equal."""
    return sum(
        return_spread(tree) <= 1e-9
        for job in jobs
        if job.trees is not None
        for tree in read_as(from_record, job.trees, job.name, job.index)
    )


def fit_base(config: RunConfig, run: Run, progress: Progress, warm: Path) -> Path:
    """The base policy: the warm one, with its value head fitted on what search found."""
    out = run.checkpoints / "base"
    if run.is_done("base"):
        return out
    checkpoint = load_checkpoint(warm, device_map=config.policy.device_map)
    head = value_head(checkpoint, config)
    with logged(run.log, progress) as on_event:
        fitted = fit_value(
            checkpoint.model,
            head,
            sample_value_rows(read_trees(run.trees), config, head.reward_range),
            config.update.value,
            # A step of its own for each epoch: a fit that is done again replaces what it logged.
            on_metrics=lambda metrics: on_event(Event("value", metrics={"step": metrics["epoch"], **metrics})),
            on_progress=lambda done, total: on_event(Event("value", done=done, total=total)),
        )
    save_checkpoint(Checkpoint(checkpoint.model, checkpoint.tokenizer, head), out)
    run.finish("base", {"value": asdict(fitted)})
    return out


def update(
    config: RunConfig,
    run: Run,
    progress: Progress,
    checkpoint: Path,
    methods: Sequence[Method],
    trees: Run | None = None,
) -> list[Path]:
    """One updated checkpoint a method, each from ``checkpoint`` and the same trees: all of the run, or of another.

    Raises:
        Refused: the other run sampled at another temperature, and a method compares the policy with how it sampled.
        RunError: an update was begun with other trees.
    """
    updates = [(checkpoint, method, run.checkpoints / method) for method in methods]
    source = trees or run
    drawn, wanted = source.config.policy.temperature, config.policy.temperature
    if drawn != wanted and (comparing := [method for method in methods if method != "rft"]):
        raise Refused(
            f"policy.temperature is {wanted:g}, but the trees of {source.path} were sampled at {drawn:g}, with whose "
            f"log-probabilities {comparing[0]} compares the policy: set policy.temperature={drawn:g}"
        )
    for method in methods:
        run.take_trees(method, source)
    return learn(config, run, progress, updates, source.collections(), source.trees)


def learn(
    config: RunConfig,
    run: Run,
    progress: Progress,
    updates: Sequence[tuple[Path, Method, Path]],
    names: Sequence[str],
    trees: Path | None = None,
) -> list[Path]:
    """Updates side by side, each from a checkpoint by a method to a new checkpoint; ``names`` are of the shards whose
    trees they learn from, in the folder ``trees``, by default the run's."""
    refuse_held(config, [method for _, method, _ in updates])
    for checkpoint, _, out in updates:
        run.take(out.name, checkpoint)
    jobs = [
        TrainJob(config, checkpoint, method, trees or run.trees, names, out, out.with_name(f".{out.name}"))
        for checkpoint, method, out in updates
        if not run.is_done(out.name)
    ]
    if config.update.processes > 1:  # the processes of one update want this machine for themselves
        config = replace(config, engine="local", workers=1)
    with logged(run.log, progress) as on_event:
        for job, facts in run_jobs(train, jobs, config, on_event):
            run.finish(job.out.name, facts)
    return [out for _, _, out in updates]


def refuse_held(config: RunConfig, methods: Sequence[Method]) -> None:
    """
    Raises:
        Refused: a method compares the policy with log-probabilities among the tokens that a form allowed, or what
            holds turns to a form is not installed.
    """
    policy = config.policy
    if policy.structured:
        import_module("treeagent.generators.structured")  # rather now than after the warm start
    if policy.structured and policy.generator != "local" and (unfit := [each for each in methods if each != "rft"]):
        raise Refused(
            f"{unfit[0]} compares the policy with the log-probabilities of what was drawn, which policy.generator "
            f"{policy.generator!r} gives among the tokens that policy.structured allows alone: learn by rft, set "
            "policy.structured=false, or search with policy.generator=local"
        )


def evaluate(config: RunConfig, run: Run, progress: Progress, checkpoint: Path) -> list[Row]:
    """One checkpoint in every mode of ``evaluate.modes``."""
    return compare(config, run, progress, [checkpoint])


def compare(config: RunConfig, run: Run, progress: Progress, checkpoints: Sequence[Path]) -> list[Row]:
    """A row per (policy, mode), on the same held-out tasks; written to ``run.results``."""
    return measure(config, run, progress, [(each, mode) for each in checkpoints for mode in config.evaluate.modes])


def measure(config: RunConfig, run: Run, progress: Progress, wanted: Sequence[tuple[Path, Mode]]) -> list[Row]:
    """A row for each checkpoint and mode that is wanted; written to ``run.results``. Waves on disk are kept.

    Raises:
        Refused: of a row no episode took a step, because all failed. The row is not done.
    """
    for checkpoint, mode in wanted:
        run.take(_evaluation(checkpoint, mode), checkpoint)
    wholes = {
        _evaluation(checkpoint, mode): waves(
            config, run, checkpoint, checkpoint.name, range(config.evaluate.tasks), mode
        )
        for checkpoint, mode in wanted
    }
    jobs: list[WaveJob] = []
    played: dict[str, dict[int, PlayedWave]] = {}
    for stage, whole in wholes.items():
        if run.is_done(stage):
            forget_waves(run.outcomes, stage, range(len(whole)))  # a kill may have come in between
            continue
        jobs += whole
        found = {job.index: kept_wave(run.outcomes, stage, job.index, job.tasks, run.trees) for job in whole}
        played[stage] = {index: wave for index, wave in found.items() if wave is not None}
        _finish_row(run, stage, whole, played[stage])
    waiting = [job for job in jobs if job.index not in played[_stage(job)]]
    waiting.sort(key=lambda job: job.mode == "greedy")  # the longest first, so that no worker ends alone
    with progress.track("evaluate", sum(len(job.tasks) for job in jobs)) as advance:
        advance(sum(len(job.tasks) for job in jobs) - sum(len(job.tasks) for job in waiting))
        for job, (outcomes, seconds) in run_jobs(evaluate_wave, waiting, config):
            stage, shard = _stage(job), replace(job, name=_stage(job)).shard
            wave = PlayedWave(tuple(job.tasks), tuple(outcomes), seconds, shard if (run.trees / shard).exists() else "")
            if not went_nowhere(outcomes):  # else what they all failed by may be mended before they are played again
                keep_wave(run.outcomes, stage, job.index, wave)
            played[stage][job.index] = wave
            advance(len(job.tasks), {"": f"{job.name} {job.mode}"})
            _finish_row(run, stage, wholes[stage], played[stage])
    rows = [run.facts(_evaluation(checkpoint, mode)) for checkpoint, mode in wanted]
    write_atomic(run.results, orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return rows


def _finish_row(run: Run, stage: str, whole: Sequence[WaveJob], played: Mapping[int, PlayedWave]) -> None:
    """If all waves of the row are played."""
    if len(played) < len(whole):
        return
    outcomes = [outcome for job in whole for outcome in played[job.index].outcomes]
    row = summarise(whole[0].name, whole[0].mode, outcomes, sum(wave.seconds for wave in played.values()))
    run.finish(stage, row)
    forget_waves(run.outcomes, stage, range(len(whole)))


def report(config: RunConfig, run: Run, rows: Sequence[Row]) -> Path:
    """RUN/report.html: the table, the curves and one tree to look at."""
    path = run.path / "report.html"
    packages = ("treeagent", "torch", "transformers", "trl")
    write_report(
        path,
        rows=rows,
        metrics=run.metrics(),
        config=dump_config(config),
        provenance={"seed": str(config.seed), **{package: version(package) for package in packages}},
        alarms=run.alarms(),
        tree=_telling_tree(run),
    )
    return path


def _telling_tree(run: Run) -> Tree | None:
    """The stored training tree, of the first hundred, whose edges differ most in what they led to."""
    grown = (tree for name in run.collections() for tree in read_as(from_record, run.trees, name))
    trees = list(islice(grown, 100))

    def spread(tree: Tree) -> float:
        values = [edge.value for node in tree.nodes() for edge in node.edges if edge.visits]
        mean = sum(values) / max(len(values), 1)
        return sum((value - mean) ** 2 for value in values)

    return max(trees, key=spread, default=None)


def waves(
    config: RunConfig,
    run: Run,
    checkpoint: Path,
    name: str,
    tasks: Sequence[int],
    mode: Mode | None = None,
    first: int = 0,
) -> list[WaveJob]:
    """Jobs over tasks: of the test split to evaluate in ``mode``, of the training split to collect."""
    size = config.collect.wave
    jobs = [
        WaveJob(config, checkpoint, name, first + index, tasks[start : start + size], run.trees)
        for index, start in enumerate(range(0, len(tasks), size))
    ]
    return jobs if mode is None else [replace(job, split="test", mode=mode) for job in jobs]


def _evaluation(checkpoint: Path, mode: Mode) -> str:
    """The stage's name."""
    return f"evaluate-{checkpoint.name}-{mode}"


def _stage(job: WaveJob) -> str:
    return _evaluation(job.checkpoint, job.mode)

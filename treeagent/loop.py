"""The story of a run: imitate, search, learn from the trees, compare. Every stage is recorded and resumes."""

import math
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any

import orjson

from treeagent.actors import environment, make_policy, play_on
from treeagent.checkpoint import Checkpoint, load_checkpoint, load_tokenizer, save_checkpoint
from treeagent.collect import Alternatives, demonstrate, demonstrated, tokenise
from treeagent.config import Method, RunConfig, dump_config
from treeagent.early_experience import reflection_rows, reflections, world_rows
from treeagent.envs.base import Env
from treeagent.evaluate import Mode, Outcome, summarise
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.grammar import Grammar, make_grammar
from treeagent.health import return_spread
from treeagent.jobs import TrainJob, WaveJob, evaluate_wave, read_trees, sample_value_rows, search_wave
from treeagent.learners.config import SFTConfig
from treeagent.learners.lora import with_adapter
from treeagent.learners.sft import train_sft
from treeagent.learners.value import fit_value
from treeagent.learners.watch import Hooks, TrainResult
from treeagent.pool import run_jobs
from treeagent.progress import Advance, Progress
from treeagent.report.html import write_report
from treeagent.run import COLLECTED, Run, RunError
from treeagent.search.node import Tree, path_return
from treeagent.search.record import from_record
from treeagent.seeds import derive_seed
from treeagent.store import read_as, shards, write_atomic
from treeagent.targets import TokenRow, path_rows
from treeagent.telemetry import Cost, Event
from treeagent.train_job import train
from treeagent.types import Task
from treeagent.value_head import ValueHead

Row = dict[str, Any]
_TOKENIZER_EPISODES = 1500
"""Demonstrations whose text a tokenizer from scratch is made of."""


def quickstart(config: RunConfig, run: Run, progress: Progress) -> list[Row]:
    """A better agent and the evidence: warm start, search, one update a method, evaluation of them all."""
    warm = warm_start(config, run, progress)
    collect(config, run, progress, warm)
    base = fit_base(config, run, progress, warm)
    updated = update(config, run, progress, base, config.update.methods)
    rows = compare(config, run, progress, [base, *updated])
    report(config, run, rows)
    return rows


def warm_start(config: RunConfig, run: Run, progress: Progress) -> Path:
    """A model that imitates noisy demonstrations, from scratch unless ``policy.model`` names one; with a value head
    that learns their outcomes along."""
    out = run.checkpoints / "warm"
    if run.is_done("warm_start"):
        return out
    settings, early = config.warm_start, config.warm_start.early_experience
    with progress.track("demonstrations", settings.episodes) as advance:
        demonstrations = _advancing(_demonstrations(config), advance)
        first = list(islice(demonstrations, _TOKENIZER_EPISODES))
        checkpoint = _initial_checkpoint(config, first)
        # One demonstration at a time: its rows are small, its states are not.
        told = list(map(_lessons(config, checkpoint), chain(first, demonstrations)))
    world = [row for each in told for row in each.world if len(row.token_ids) <= settings.max_tokens]
    rows = [row for each in told for row in each.imitation if len(row.token_ids) <= settings.max_tokens]
    reflected = [row for each in told for row in each.reflections if len(row.token_ids) <= settings.max_tokens]
    if (early.wants("world") and not world) or (early.wants("reflection") and not reflected):
        raise RunError(
            f"the demonstrations leave {len(world)} world rows within warm_start.max_tokens ({settings.max_tokens}) "
            f"and {len(reflected)} reflections within policy.max_new_tokens ({config.policy.max_new_tokens}) beside: "
            f"raise these, or set warm_start.early_experience.rows, now {early.rows!r}, to what there is"
        )
    before, after = run.checkpoints / ".warm_start_world", run.checkpoints / ".warm_start"
    with tracking(run, progress) as on_event:

        def train_on(
            rows: Sequence[TokenRow], sft: SFTConfig, name: str, scratch: Path, head: ValueHead | None
        ) -> TrainResult:
            hooks = Hooks(
                on_metrics=lambda metrics: on_event(Event(name, metrics=metrics)),
                on_progress=lambda done, total: on_event(Event(name, done=done, total=total)),
                checkpoint_dir=scratch,
            )
            return train_sft(checkpoint.model, checkpoint.tokenizer, rows, sft, head=head, **hooks)

        if early.wants("world"):
            train_on(world, replace(settings.sft, max_steps=early.world_steps), "warm_start_world", before, None)
        result = train_on([*rows, *reflected], settings.sft, "warm_start", after, checkpoint.head)
    save_checkpoint(checkpoint, out)
    outcomes = [each.outcome for each in told if each.outcome is not None]
    run.finish(
        "warm_start",
        {
            "demonstrations": len(told),
            "demonstration_success": sum(outcome >= 1.0 for outcome in outcomes) / len(told),
            "environment_steps": sum(each.environment_steps for each in told),
            "rows": len(rows),
            "world_rows": len(world),
            "reflections": len(reflected),
            "parameters": sum(parameter.numel() for parameter in checkpoint.model.parameters()),
            "update": asdict(result),
        },
    )
    for scratch in (before, after):
        shutil.rmtree(scratch, ignore_errors=True)
    return out


def collect(config: RunConfig, run: Run, progress: Progress, checkpoint: Path) -> None:
    """Search training tasks, one tree each, a shard a wave; waves on disk are kept."""
    search_waves(config, run, progress, waves(config, run, checkpoint, COLLECTED, range(config.collect.tasks)))


def search_waves(config: RunConfig, run: Run, progress: Progress, jobs: Sequence[WaveJob]) -> None:
    """One stage of searching, named as its jobs are. Tasks of which nothing can be learned are made up for by further
    ones, as ``collect.resample`` says."""
    name, checkpoint = jobs[0].name, jobs[0].checkpoint
    if run.is_done(name):
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
        start = 1 + max(place for job in jobs for place in job.tasks)
        jobs = waves(config, run, checkpoint, name, range(start, start + missing), first=jobs[-1].index + 1)
    facts = {"tasks": sum(map(len, places)), "checkpoint": str(checkpoint), "waves": places}
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
    head = checkpoint.head or ValueHead(checkpoint.model.config.hidden_size)
    with tracking(run, progress) as on_event:
        fitted = fit_value(
            checkpoint.model,
            head,
            sample_value_rows(read_trees(run.trees), config),
            config.update.value,
            # A step of its own for each epoch: a fit that is done again replaces what it logged.
            on_metrics=lambda metrics: on_event(Event("value", metrics={"step": metrics["epoch"], **metrics})),
            on_progress=lambda done, total: on_event(Event("value", done=done, total=total)),
        )
    save_checkpoint(Checkpoint(checkpoint.model, checkpoint.tokenizer, head), out)
    run.finish("base", {"value": asdict(fitted)})
    return out


def update(config: RunConfig, run: Run, progress: Progress, checkpoint: Path, methods: Sequence[Method]) -> list[Path]:
    """One updated checkpoint a method, each from ``checkpoint`` and the same trees."""
    return learn(
        config, run, progress, [(checkpoint, method, run.checkpoints / method) for method in methods], [COLLECTED]
    )


def learn(
    config: RunConfig,
    run: Run,
    progress: Progress,
    updates: Sequence[tuple[Path, Method, Path]],
    names: Sequence[str],
) -> list[Path]:
    """Updates side by side, each from a checkpoint by a method to a new checkpoint; ``names`` are of the shards whose
    trees they learn from."""
    jobs = [
        TrainJob(config, checkpoint, method, run.trees, names, out, out.with_name(f".{out.name}"))
        for checkpoint, method, out in updates
        if not run.is_done(out.name)
    ]
    if config.update.processes > 1:  # the processes of one update want this machine for themselves
        config = replace(config, engine="local", workers=1)
    with tracking(run, progress) as on_event:
        for job, facts in run_jobs(train, jobs, config, on_event):
            run.finish(job.out.name, facts)
    return [out for _, _, out in updates]


def evaluate(config: RunConfig, run: Run, progress: Progress, checkpoint: Path) -> list[Row]:
    """One checkpoint in every mode of ``evaluate.modes``."""
    return compare(config, run, progress, [checkpoint])


def compare(config: RunConfig, run: Run, progress: Progress, checkpoints: Sequence[Path]) -> list[Row]:
    """A row per (policy, mode), on the same held-out tasks; written to ``run.results``."""
    return measure(config, run, progress, [(each, mode) for each in checkpoints for mode in config.evaluate.modes])


def measure(config: RunConfig, run: Run, progress: Progress, wanted: Sequence[tuple[Path, Mode]]) -> list[Row]:
    """A row for each checkpoint and mode that is wanted; written to ``run.results``."""
    jobs = [
        job
        for checkpoint, mode in wanted
        if not run.is_done(_evaluation(checkpoint, mode))
        for job in waves(config, run, checkpoint, checkpoint.name, range(config.evaluate.tasks), mode)
    ]
    jobs.sort(key=lambda job: job.mode == "greedy")  # the longest first, so that no worker ends alone
    parts: dict[tuple[Path, Mode], list[tuple[WaveJob, list[Outcome], float]]] = defaultdict(list)
    with progress.track("evaluate", sum(len(job.tasks) for job in jobs)) as advance:
        for job, (outcomes, seconds) in run_jobs(evaluate_wave, jobs, config):
            done = parts[job.checkpoint, job.mode]
            done.append((job, outcomes, seconds))
            advance(len(job.tasks), {"": f"{job.name} {job.mode}"})
            if sum(len(part.tasks) for part, _, _ in done) == config.evaluate.tasks:
                played = [outcome for _, outcomes, _ in sorted(done, key=_by_index) for outcome in outcomes]
                row = summarise(job.name, job.mode, played, sum(seconds for _, _, seconds in done))
                run.finish(_evaluation(job.checkpoint, job.mode), row)
    rows = [run.facts(_evaluation(checkpoint, mode)) for checkpoint, mode in wanted]
    write_atomic(run.results, orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return rows


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
        tree=_telling_tree(run),
    )
    return path


def _telling_tree(run: Run) -> Tree | None:
    """The stored training tree, of the first hundred, whose edges differ most in what they led to."""
    trees = list(islice(read_as(from_record, run.trees, COLLECTED), 100))

    def spread(tree: Tree) -> float:
        values = [edge.value for node in tree.nodes() for edge in node.edges if edge.visits]
        mean = sum(values) / max(len(values), 1)
        return sum((value - mean) ** 2 for value in values)

    return max(trees, key=spread, default=None)


def _demonstrations(config: RunConfig) -> Iterator[Tree]:
    """With other actions tried beside those of the first ones, where they are wanted."""
    env, settings = environment(config), config.warm_start
    demonstrator = env.demonstrator(settings.noise)
    if demonstrator is None:
        raise RunError(
            f"environment {config.environment.name!r} has no demonstrator to warm-start from: "
            "set policy.model to a model that can act already"
        )
    branched, alternatives = 0, _alternatives(config, env)
    if alternatives is not None:
        branched = math.ceil(settings.early_experience.share * settings.episodes)
    dynamics, grammar = play_on(env, config, "demonstrate"), _grammar(config)
    for start in range(0, settings.episodes, settings.tasks):
        count = min(settings.tasks, settings.episodes - start)
        tasks: Sequence[Task] = env.tasks("train", count)
        seed, here = derive_seed(config.seed, "demonstrate", start), max(branched - start, 0)
        yield from demonstrate(
            dynamics, demonstrator, tasks[:here], seed=seed, grammar=grammar, alternatives=alternatives
        )
        yield from demonstrate(dynamics, demonstrator, tasks[here:], seed=seed, grammar=grammar)


def _alternatives(config: RunConfig, env: Env) -> Alternatives | None:
    """Who acts beside the demonstrator, if anybody is to."""
    settings = config.warm_start.early_experience
    if settings.rows == "none":
        return None
    expert, erring = env.demonstrator(0.0), env.demonstrator(1.0)
    if expert is None or erring is None or env.snapshot_kind == "none":
        raise RunError(
            f"warm_start.early_experience.rows is {settings.rows!r}, which tries other actions at the states of a "
            f"demonstration, but environment {config.environment.name!r} cannot go back to a state: set it to 'none'"
        )
    return Alternatives(expert, erring, settings.alternatives)


def _grammar(config: RunConfig) -> Grammar:
    settings = config.policy
    template = "" if settings.model is None else str(load_tokenizer(settings.model).chat_template)
    return make_grammar(settings.format, template)


def _initial_checkpoint(config: RunConfig, demonstrations: Sequence[Tree]) -> Checkpoint:
    if config.policy.model is not None:
        checkpoint = load_checkpoint(config.policy.model, device_map=config.policy.device_map)
        head = checkpoint.head or ValueHead(checkpoint.model.config.hidden_size)
        adapted = with_adapter(checkpoint.model, config.warm_start.lora, derive_seed(config.seed, "lora"))
        return Checkpoint(adapted, checkpoint.tokenizer, head)
    texts = [text for tree in demonstrations for text in _texts(config, tree)]
    tokenizer = train_tokenizer(texts, config.policy.scratch)
    model = random_model(tokenizer, config.policy.scratch, derive_seed(config.seed, "weights"))
    return Checkpoint(
        model, tokenizer, ValueHead(model.config.hidden_size, seed=derive_seed(config.seed, "value_head"))
    )


def _texts(config: RunConfig, demonstration: Tree) -> Iterator[str]:
    """What a tokenizer is to spell shortly."""
    path = demonstrated(demonstration)
    last = path[-1].child if path else demonstration.root
    assert last is not None
    yield from (message.content for message in last.state.messages)
    if config.warm_start.early_experience.wants("reflection"):
        yield from (one.turn for one in reflections(demonstration, config.update.targets, _grammar(config)))


@dataclass(frozen=True, slots=True)
class _Lessons:
    """What one demonstration teaches."""

    imitation: Sequence[TokenRow]
    world: Sequence[TokenRow]
    reflections: Sequence[TokenRow]
    outcome: float | None
    """Its return; none where there was no step."""
    environment_steps: int
    """Of alternatives, too."""


def _lessons(config: RunConfig, checkpoint: Checkpoint) -> Callable[[Tree], _Lessons]:
    """Demonstrations to rows, with the outcome as every state's value, and to rows of early experience where they are
    wanted, of reflections those that the policy could say."""
    chat, grammar, wanted = make_policy(checkpoint, config).chat, _grammar(config), config.warm_start.early_experience

    def lessons(demonstration: Tree) -> _Lessons:
        tree = tokenise(demonstration, chat)
        path = demonstrated(tree)
        outcome = path_return(demonstrated(demonstration)) if path else None
        alone = tree.budget.simulations <= 1
        reflected: Iterable[TokenRow] = ()
        if wanted.wants("reflection"):
            reflected = reflection_rows(tree, config.update.targets, grammar, chat.encode_action)
        return _Lessons(
            list(path_rows(tree, path, [outcome] * (len(path) + 1))),
            list(world_rows(tree)) if wanted.wants("world") and not alone else [],
            [row for row in reflected if sum(row.mask) <= config.policy.max_new_tokens],
            outcome,
            tree.budget.environment_steps,
        )

    return lessons


def _advancing(items: Iterator[Tree], advance: Advance) -> Iterator[Tree]:
    for item in items:
        advance(1)
        yield item


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


def _by_index(part: tuple[WaveJob, list[Outcome], float]) -> int:
    return part[0].index


@contextmanager
def tracking(run: Run, progress: Progress) -> Iterator[Callable[[Event], None]]:
    """A bar for each name that events come from, their metrics into the run's log."""
    with ExitStack() as stack:
        bars: dict[str, Advance] = {}
        shown: dict[str, int] = defaultdict(int)

        def on_event(event: Event) -> None:
            if event.metrics:
                run.log(event.name, event.metrics)
            if event.total:
                if event.name not in bars:
                    bars[event.name] = stack.enter_context(progress.track(event.name, event.total))
                bars[event.name](event.done - shown[event.name])
                shown[event.name] = event.done

        yield on_event

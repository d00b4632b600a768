"""Update a policy from stored trees: the driver runs several updates side by side, a worker runs one."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import PreTrainedModel

from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, with_adapter
from treeagent.config import Method, RunConfig, Training
from treeagent.generators.turn import make_grammar
from treeagent.learners.common import TrainResult
from treeagent.learners.config import DistilConfig, DPOConfig, GRPOConfig, OptimiserConfig, SFTConfig, ValueConfig
from treeagent.learners.dpo import train_dpo
from treeagent.learners.grpo import train_grpo
from treeagent.learners.sft import train_distil, train_sft
from treeagent.learners.value import check_value_rows, fit_value
from treeagent.pipeline import build
from treeagent.pipeline.alarms import first_cause, value_alarms
from treeagent.pipeline.collect import search_tasks
from treeagent.pipeline.folder import Run
from treeagent.pipeline.metrics import Emit, Event, logged, training_hooks
from treeagent.pipeline.opening import training_threads
from treeagent.pipeline.outcomes import limits_in_words, limits_met
from treeagent.pipeline.play import execute, playable_together
from treeagent.pipeline.processes import run_jobs
from treeagent.pipeline.progress import Progress
from treeagent.pipeline.rows import TrainJob, policy_training_rows, sample_value_rows
from treeagent.pipeline.trees import read_trees
from treeagent.types import NothingToLearn, derive_seed

SAMPLES, SAMPLED = "samples", "sampled"
"""Names of the episodes that ``control`` samples, and of the policy that imitates them."""


def fit_base(config: RunConfig, run: Run, progress: Progress, warm: Path) -> Path:
    """Fit the value head of the warm-started policy to the run's trees: the base policy, from which updates start."""
    out = run.checkpoints / "base"
    if run.is_done("base"):
        return out
    checkpoint = load_checkpoint(warm, device_map=config.policy.device_map)
    head = build.value_head(checkpoint, config)
    with logged(run.log, progress) as on_event:
        fitted = fit_value(
            checkpoint.model,
            head,
            sample_value_rows(read_trees(run.trees), config, head.reward_range),
            ValueConfig(seed=config.seed),
            # The epoch is the step, so that a repeated fit overwrites its own rows of metrics.
            on_metrics=lambda metrics: on_event(Event("value", metrics={"step": metrics["epoch"], **metrics})),
            on_progress=lambda done, total: on_event(Event("value", done=done, total=total)),
        )
    save_checkpoint(Checkpoint(checkpoint.model, checkpoint.tokenizer, head), out)
    run.finish("base", {"value": asdict(fitted), "alarms": value_alarms([fitted.explained_variance])})
    return out


def update(
    config: RunConfig,
    run: Run,
    progress: Progress,
    checkpoint: Path,
    methods: Sequence[Method],
    trees: Run | None = None,
    others: Sequence[TrainJob] = (),
) -> list[Path]:
    """Update ``checkpoint`` once by each method, from the trees of this run or of the run ``trees``, and do ``others``
    beside. Returns the updated checkpoints."""
    source = trees or run
    for part in methods:
        run.record_trees(part, source)
    names = source.collections()
    jobs = [TrainJob(config, checkpoint, each, source.trees, names, run.checkpoints / each) for each in methods]
    return learn(config, run, progress, [*jobs, *others])


def control(config: RunConfig, run: Run, progress: Progress, start: Path, base: Path) -> TrainJob:
    """Sample up to ``evaluate.best_of`` episodes of each training task, within the search's other limits. Returns the
    update of ``base`` that imitates all of their distinct successes (RFT, Yuan et al. 2023): what learning from trees
    is measured against."""
    most = config.evaluate.best_of
    search = replace(config.search.by("best_of_n"), limits=replace(config.search.limits, simulations=most))
    imitation = replace(config.update.imitation, what="paths", paths_per_tree=most)
    sampling = replace(config, search=search, update=replace(config.update, imitation=imitation))
    search_tasks(sampling, run, progress, start, SAMPLES, range(config.collect.tasks))
    return TrainJob(sampling, base, "rft", run.trees, [SAMPLES], run.checkpoints / SAMPLED)


def learn(config: RunConfig, run: Run, progress: Progress, updates: Sequence[TrainJob]) -> list[Path]:
    """Run updates side by side. Returns the updated checkpoints."""
    for job in updates:
        run.record_checkpoint(job.out.name, job.checkpoint)
    waiting = [job for job in updates if not run.is_done(job.out.name)]
    with logged(run.log, progress) as on_event:
        try:
            for job, facts in train_all(waiting, config, on_event):
                run.finish(job.out.name, facts)
                shutil.rmtree(job.scratch, ignore_errors=True)  # only now: nothing resumes from half of a checkpoint
        except NothingToLearn as symptom:
            cause = first_cause(run.stages(), read_trees(updates[0].trees, updates[0].names))
            raise NothingToLearn(f"{cause}; so {symptom}" if cause else str(symptom)) from symptom
    return [job.out for job in updates]


Trained = Iterator[tuple[TrainJob, dict[str, Any]]]
"""Updates with their facts, in the order in which they end."""


def in_workers(jobs: Sequence[TrainJob], config: RunConfig, on_event: Emit) -> Trained:
    """Run each update in a worker; a single one gets the threads of all workers."""
    if len(jobs) == 1:
        config = replace(config, threads=training_threads(config, jobs[0].checkpoint))
    return run_jobs(train_policy, jobs, config, on_event)


train_all: Callable[[Sequence[TrainJob], RunConfig, Emit], Trained] = in_workers
"""Runs the updates of a stage; ``treeagent.contrib.scale`` puts its own here."""
Lead = Callable[[PreTrainedModel | PeftModel, Callable[[], Any]], Any]
"""Does the work of the leading one of the processes that train together, and returns its result to all."""
_TRAINERS: Mapping[Method, tuple[Callable[..., TrainResult], type[OptimiserConfig]]] = {
    "rft": (train_sft, SFTConfig),
    "distil": (train_distil, DistilConfig),
    "dpo": (train_dpo, DPOConfig),
    "grpo": (train_grpo, GRPOConfig),
}


def train_policy(
    job: TrainJob,
    emit: Emit,
    lead: Lead = lambda model, work: work(),
    save: Callable[[Checkpoint, Path], Path] = save_checkpoint,
) -> dict[str, Any]:
    """Update the policy, refit the value head if outcomes of two tasks or more are known, and save both. Returns the
    facts of the stage."""
    config, settings, fitting = job.config, job.config.update, ValueConfig(seed=job.config.seed)
    loaded = load_checkpoint(job.checkpoint, device_map=config.policy.device_map)
    head, tokenizer = build.value_head(loaded, config), loaded.tokenizer
    model = with_adapter(loaded.model, config.policy.lora, derive_seed(config.seed, "lora"))
    checkpoint = replace(loaded, model=model)
    rows, trees = list(policy_training_rows(job, checkpoint)), read_trees(job.trees, job.names)
    known = sample_value_rows(trees, config, head.reward_range, build.make_chat(checkpoint, config))
    values = known if len({row.task_id for row in known}) > 1 else []  # of one task, none could be held out
    if values:
        check_value_rows(head, values, fitting)  # raises before the policy is trained, not after
    limits = Counter[str]()
    success = greedy_success(checkpoint, config, limits)
    hooks: dict[str, Any] = {**training_hooks(emit, job.out.name, job.scratch, lambda: lead(model, success))}
    if job.method != "rft":
        hooks["temperature"] = config.policy.temperature
    train, kind = _TRAINERS[job.method]
    training: Training = getattr(settings, job.method)
    learner = config.learner(kind, training.at_rate(None if isinstance(model, PeftModel) else model.num_parameters()))
    result = train(model, tokenizer, rows, learner, **hooks)
    facts: dict[str, Any] = {"update": asdict(result)}
    if values:
        facts["value"] = asdict(lead(model, lambda: fit_value(model, head, values, fitting)))
    save(Checkpoint(model, tokenizer, head if values else loaded.head), job.out)
    alarms: list[str] = []
    if known and not values:
        alarms.append(
            f"{job.out.name} keeps the value head as it was: outcomes of a single task are known, and fitting a head "
            "needs two tasks or more"
        )
    if result.best_step == 0:
        advice = (
            "learn from more trees, validate on more tasks (update.validation_tasks), or change "
            f"update.{job.method}.learning_rate"
        )
        alarms.append(
            f"{job.out.name} acts as the policy that it was to improve: no later validation solved more of the "
            f"{settings.validation_tasks} tasks than the {result.best_validation:.0%} before the first step; "
            f"{'; '.join(limits_in_words(limits, settings.validation_tasks)) or advice}"
        )
    return facts | {"alarms": alarms}


def greedy_success(checkpoint: Checkpoint, config: RunConfig, limits: Counter[str]) -> Callable[[], float]:
    """A function that plays the validation tasks greedily by the current weights: the share solved. ``limits`` counts
    what cut off the others."""
    env = build.environment(config)
    tasks = env.tasks("validation", config.update.validation_tasks)
    grammar = make_grammar(config.policy.format, str(checkpoint.tokenizer.chat_template), env.tools())
    dynamics = build.with_split_steps(build.env_dynamics(build.instances(config), config, "validate"), config, grammar)

    def measure() -> float:
        player, solved = build.in_steps(build.make_policy(checkpoint, config).greedy(), config), 0  # of new weights
        limits.clear()
        for group in playable_together(env, config.environment.parallel, tasks):
            played = execute(player, dynamics, group, [0] * len(group), [()] * len(group))
            for outcome, episode in zip(*asyncio.run(played), strict=True):
                solved += outcome.success
                limits.update(limits_met(outcome, episode, None, config.search.limits))
        return solved / len(tasks)

    return measure

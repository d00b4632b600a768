"""Update a policy from stored trees: the driver runs several updates side by side; a worker makes rows of the trees and
runs one update."""

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import PreTrainedModel

from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, with_adapter
from treeagent.config import Method, RunConfig, Training
from treeagent.generators.chat import ChatFormat
from treeagent.generators.turn import make_grammar
from treeagent.learners.common import TrainResult
from treeagent.learners.config import DistilConfig, DPOConfig, GRPOConfig, OptimiserConfig, SFTConfig, ValueConfig
from treeagent.learners.dpo import train_dpo
from treeagent.learners.grpo import train_grpo
from treeagent.learners.sft import train_distil, train_sft
from treeagent.learners.value import check_value_rows, fit_value
from treeagent.pipeline import build
from treeagent.pipeline.alarms import first_cause, value_alarms
from treeagent.pipeline.collect import collect
from treeagent.pipeline.folder import Run
from treeagent.pipeline.metrics import Emit, Event, logged, training_hooks
from treeagent.pipeline.opening import training_threads
from treeagent.pipeline.outcomes import limits_in_words, limits_met
from treeagent.pipeline.play import execute, playable_together
from treeagent.pipeline.processes import run_jobs
from treeagent.pipeline.progress import Progress
from treeagent.pipeline.trees import read_trees, trees_by_task
from treeagent.search.node import Tree, finished_paths, path_return
from treeagent.types import NothingToLearn, UserError, derive_seed
from treeagent.views.advantages import AdvantageConfig, AdvantageRow, advantage_rows, advantages
from treeagent.views.imitation import imitation_rows
from treeagent.views.pairs import preference_pairs, self_pairs
from treeagent.views.policy import policy_rows
from treeagent.views.tokens import TokenRow
from treeagent.views.values import is_read, value_rows

SAMPLES, SAMPLED = "samples", "sampled"
"""Names of the episodes that ``control`` samples, and of the policy that imitates them."""


@dataclass(frozen=True, slots=True)
class TrainJob:
    """One update of a checkpoint from stored trees."""

    config: RunConfig
    checkpoint: Path
    method: Method
    trees: Path
    names: Sequence[str]
    """Names of the shards in ``trees`` to learn from."""
    out: Path

    @property
    def scratch(self) -> Path:
        """Folder of the trainer's own checkpoints, from which an update resumes."""
        return self.out.with_name(f".{self.out.name}")


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
            ValueConfig(precision=config.precision(config.policy), seed=config.seed),
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
    collect(sampling, run, progress, start, SAMPLES, range(config.collect.tasks))
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
    config, settings = job.config, job.config.update
    fitting = ValueConfig(precision=config.precision(config.policy), seed=config.seed)
    loaded = load_checkpoint(job.checkpoint, device_map=config.policy.device_map)
    head, tokenizer = build.value_head(loaded, config), loaded.tokenizer
    model = with_adapter(loaded.model, config.policy.lora, derive_seed(config.seed, "lora"))
    checkpoint = replace(loaded, model=model)
    chat = build.make_chat(checkpoint, config)
    rows = list(policy_training_rows(job, chat))
    known = sample_value_rows(read_trees(job.trees, job.names), config, head.reward_range, chat)
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


def policy_training_rows(job: TrainJob, chat: ChatFormat) -> Iterator[Any]:
    """Yield the rows of the job's method, made from stored trees."""
    settings = job.config.update
    if job.method in ("rft", "distil"):
        for tree in read_trees(job.trees, job.names):
            refuse_foreign(tree, chat, job)
            rft = job.method == "rft"
            yield from imitation_rows(tree, settings.imitation) if rft else policy_rows(tree, settings.targets)
        return
    for trees in trees_by_task(job.trees, job.names):
        for tree in trees:
            refuse_foreign(tree, chat, job)
        if job.method == "grpo":
            yield from scored_rows(trees, settings.advantages)
            continue
        yield from preference_pairs(trees, settings.pairs)
        if "sft" in settings.dpo.loss_type and settings.pairs.rule != "trajectory":  # whose chosen paths are whole
            for tree in trees:
                yield from self_pairs(imitation_rows(tree, settings.imitation))


def refuse_foreign(tree: Tree, chat: ChatFormat, job: TrainJob) -> None:
    """Check that a tree has the token ids of the checkpoint that is trained."""
    if tree.root.context_ids and chat.prompt_ids(tree.root.state.messages) != tree.root.context_ids:
        raise UserError(
            f"the tokenizer or chat template of {job.checkpoint} writes task {tree.task.id} in {job.trees} in "
            "other tokens than the policy that searched it: update that policy, with its policy.instructions, "
            "policy.shots and policy.format, or collect trees with this one"
        )


def scored_rows(trees: Sequence[Tree], config: AdvantageConfig) -> Iterator[AdvantageRow]:
    """The rows of all trees of a task, whose advantages are computed together."""
    scored = advantages(trees, config)
    for tree in trees:
        yield from advantage_rows(tree, scored)


def read_ends(tree: Tree, chat: ChatFormat) -> None:
    """Add the token ids of final states, which a search without a value head lacks and fitting one needs."""
    for node in tree.nodes():
        if node.final and node.state.messages and not is_read(node):
            reading = chat.read(node.state.messages)
            node.context_ids, node.left_out = reading.added_ids, reading.left_out


def sample_value_rows(
    trees: Iterable[Tree], config: RunConfig, returns: tuple[float, float], chat: ChatFormat | None = None
) -> list[TokenRow]:
    """At most ``update.value_rows`` rows with value targets, clipped to the range ``returns`` of the head, as r + V may
    leave it. Outcomes are not clipped, so that ``fit_value`` refuses them, unless a ``rewards.function`` is newer
    than the head. ``chat`` reads ends that the search did not read."""
    rows = list[TokenRow]()
    for tree in trees:
        if chat is not None:
            read_ends(tree, chat)
        path_returns = [] if config.rewards.function else [path_return(path) for path in finished_paths(tree)]
        low, high = min([returns[0], *path_returns]), max([returns[1], *path_returns])
        for row in value_rows(tree, config.update.values):
            rows.append(replace(row, value_targets=tuple(min(max(each, low), high) for each in row.value_targets)))
    return sample_rows(rows, config)


def sample_rows(rows: Sequence[TokenRow], config: RunConfig) -> list[TokenRow]:
    """At most ``update.value_rows`` rows, drawn uniformly by the run's seed."""
    indices = list(range(len(rows)))
    random.Random(derive_seed(config.seed, "value_rows")).shuffle(indices)
    return [rows[index] for index in indices[: config.update.value_rows]]

"""Update a policy from stored trees: the driver that runs updates side by side, and the worker that makes one."""

import asyncio
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from treeagent.config import Method, RunConfig
from treeagent.generators.chat import ChatFormat
from treeagent.learners.dpo import train_dpo
from treeagent.learners.grpo import train_grpo
from treeagent.learners.lora import with_adapter
from treeagent.learners.sft import train_sft
from treeagent.learners.sharding import led, sharing, whole_weights
from treeagent.learners.value import check_value_rows, fit_value
from treeagent.learners.watch import Hooks, TrainResult
from treeagent.run.alarms import first_cause
from treeagent.run.folder import Run
from treeagent.run.metrics import Emit, Event, logged
from treeagent.run.progress import Progress
from treeagent.run.trees import read_trees
from treeagent.search.node import Node, Tree, finished_paths, path_return, return_spread
from treeagent.stages.build import (
    environment,
    make_chat,
    make_policy,
    play_on,
    value_head,
)
from treeagent.stages.play import execute
from treeagent.types import NothingToLearn, UserError, derive_seed
from treeagent.views.advantages import AdvantageConfig, AdvantageRow, advantage_rows, advantages
from treeagent.views.imitation import imitation_rows
from treeagent.views.pairs import preference_pairs
from treeagent.views.tokens import TokenRow
from treeagent.views.values import value_rows
from treeagent.workers.launch import check_accelerate_config, launch
from treeagent.workers.processes import run_jobs


@dataclass(frozen=True, slots=True)
class TrainJob:
    """One update of a checkpoint from stored trees."""

    config: RunConfig
    checkpoint: Path
    method: Method
    trees: Path
    names: Sequence[str]
    """Of the shards in ``trees`` to learn from."""
    out: Path
    """Where the updated checkpoint goes."""
    scratch: Path
    """Where the trainer keeps its own checkpoints, by which an interrupted update resumes."""


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
        UserError: the other run sampled at another temperature, and a method compares the policy with how it sampled.
        RunError: an update was begun with other trees.
    """
    updates = [(checkpoint, method, run.checkpoints / method) for method in methods]
    source = trees or run
    drawn, wanted = source.config.policy.temperature, config.policy.temperature
    if drawn != wanted and (comparing := [method for method in methods if method != "rft"]):
        raise UserError(
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
        try:
            for job, facts in run_jobs(train, jobs, config, on_event):
                run.finish(job.out.name, facts)
        except NothingToLearn as symptom:
            cause = first_cause(run.stages(), read_trees(trees or run.trees, names))
            raise NothingToLearn(f"{cause}; so {symptom}" if cause else str(symptom)) from symptom
    return [out for _, _, out in updates]


def refuse_held(config: RunConfig, methods: Sequence[Method]) -> None:
    """
    Raises:
        UserError: a method compares the policy with log-probabilities among the tokens that a form allowed, or what
            holds turns to a form is not installed.
    """
    policy = config.policy
    if policy.structured:
        import_module("treeagent.generators.structured")  # rather now than after the warm start
    if policy.structured and policy.generator != "local" and (unfit := [each for each in methods if each != "rft"]):
        raise UserError(
            f"{unfit[0]} compares the policy with the log-probabilities of what was drawn, which policy.generator "
            f"{policy.generator!r} gives among the tokens that policy.structured allows alone: learn by rft, set "
            "policy.structured=false, or search with policy.generator=local"
        )


def train(job: TrainJob, emit: Emit) -> dict[str, Any]:
    """``train_policy`` in ``update.processes`` processes. Returns what it returns.

    Raises:
        LaunchError: the processes cannot be started, or broke down.
    """
    update = job.config.update
    if update.processes == 1:
        return train_policy(job, emit)
    check_accelerate(job.config, job.method)
    job.scratch.mkdir(parents=True, exist_ok=True)
    return launch(
        train_policy,
        job,
        processes=update.processes,
        accelerate_config=update.accelerate_config,
        on_cpu=_on_cpu(job.config),
        log=job.scratch / "processes.log",
        emit=emit,
    )


def check_accelerate(config: RunConfig, method: Method) -> None:
    """
    Raises:
        UserError: ``update.accelerate_config`` asks for what the update by ``method`` cannot train with.
    """
    path = config.update.accelerate_config
    if path is not None:
        precision = getattr(config.update, method).precision
        check_accelerate_config("update.accelerate_config", path, precision, on_cpu=_on_cpu(config))


def _on_cpu(config: RunConfig) -> bool:
    return config.policy.device_map in (None, "cpu")


def train_policy(job: TrainJob, emit: Emit, leads: bool = True) -> dict[str, Any]:
    """Update, refit the value head to the changed hidden states, save. Returns what is worth remembering.

    Of processes that train together one ``leads``: it alone validates, fits the head and saves, and has something to
    return.

    Raises:
        NothingToLearn: the trees teach nothing.
        UserError: the trees are another model's, or a setting does not fit.
        TrainingDiverged: a loss or a gradient is NaN or infinite; nothing is saved.
    """
    update, checkpoint = job.config.update, load_checkpoint(job.checkpoint, device_map=_place(job.config))
    head = value_head(checkpoint, job.config)
    seed = derive_seed(job.config.seed, "lora")
    checkpoint = replace(checkpoint, model=with_adapter(checkpoint.model, update.lora, seed))
    trees = informative(read_trees(job.trees, job.names), update.keep_trees)
    refuse_foreign(trees, checkpoint, job)
    read_ends(trees, make_chat(checkpoint, job.config))
    value_rows = sample_value_rows(trees, job.config, head.reward_range)
    check_value_rows(head, value_rows, update.value)  # before the policy is trained, which nobody wants to do twice
    hooks = Hooks(
        on_metrics=lambda metrics: emit(Event(job.out.name, metrics=metrics)),
        on_progress=lambda done, total: emit(Event(job.out.name, done=done, total=total)),
        validate=greedy_success(checkpoint, job.config) if leads else _told_by_another,
        checkpoint_dir=job.scratch,
    )
    model, tokenizer, temperature = checkpoint.model, checkpoint.tokenizer, job.config.policy.temperature
    match job.method:
        case "rft":
            imitated = [row for tree in trees for row in imitation_rows(tree, update.targets)]
            result = train_sft(model, tokenizer, imitated, update.rft, **hooks)
        case "dpo":
            pairs = [pair for group in by_task(trees) for pair in preference_pairs(group, update.pairs)]
            result = train_dpo(model, tokenizer, pairs, update.dpo, temperature=temperature, **hooks)
        case "grpo":
            scored = list(scored_rows(trees, update.advantages))
            result = train_grpo(model, tokenizer, scored, update.grpo, temperature=temperature, **hooks)
    fitted = led(model, lambda: fit_value(model, head, value_rows, update.value), leads=leads)
    weights = whole_weights(model)
    if fitted is None:
        return {}
    save_checkpoint(Checkpoint(model, tokenizer, head), job.out, weights)
    shutil.rmtree(job.scratch, ignore_errors=True)
    unmoved = [_unmoved(job, result)] if result.best_step == 0 else []
    return {"update": asdict(result), "value": asdict(fitted), "alarms": unmoved}


def _unmoved(job: TrainJob, result: TrainResult) -> str:
    update = job.config.update
    return (
        f"{job.out.name} acts as the policy that it was to improve: no later validation solved more of the "
        f"{update.validation_tasks} tasks than the {result.best_validation:.0%} before the first step; learn from more "
        f"trees, validate on more tasks (update.validation_tasks), or change update.{job.method}.learning_rate"
    )


def _place(config: RunConfig) -> str | None:
    """Where the weights of an update go; of processes that train together each has a GPU of its own, which may not
    hold what they share."""
    place = config.policy.device_map
    if place in (None, "cpu") or config.update.processes == 1:
        return place
    return None if sharing() else f"cuda:{os.environ['LOCAL_RANK']}"


def refuse_foreign(trees: Sequence[Tree], checkpoint: Checkpoint, job: TrainJob) -> None:
    """
    Raises:
        UserError: the checkpoint reads a tree's task as other tokens than the policy that searched it, or cannot read
            its tokens.
    """
    chat = make_chat(checkpoint, job.config)
    vocabulary = checkpoint.model.config.get_text_config().vocab_size
    for tree in trees:
        task = f"task {tree.task.id} in {job.trees}"
        largest = max((max(ids) for node in tree.nodes() for ids in _token_ids(node) if ids), default=0)
        if largest >= vocabulary:
            raise UserError(
                f"the tree of {task} holds token {largest}, but {job.checkpoint} knows {vocabulary} tokens: update the "
                "policy that searched these trees, or collect trees with this one"
            )
        if tree.root.context_ids and chat.prompt_ids(tree.root.state.messages) != tree.root.context_ids:
            raise UserError(
                f"the tokenizer or chat template of {job.checkpoint} writes {task} in other tokens than the policy "
                "that searched it: update that policy, or collect trees with this one"
            )


def read_ends(trees: Sequence[Tree], chat: ChatFormat) -> None:
    """Write the tokens of ends that nobody judged: a search without a head reads none, but a head is to be fitted."""
    for tree in trees:
        for node in tree.nodes():
            if node.terminated and not node.context_ids and not node.state.messages[-1].partial:
                reading = chat.read(node.state.messages)
                node.context_ids, node.left_out = chat.added_ids(reading), reading.left_out


def _token_ids(node: Node) -> Iterator[tuple[int, ...]]:
    yield node.context_ids
    for edge in node.edges:
        yield edge.action.token_ids


def _told_by_another() -> float:
    raise AssertionError("the process that leads validates")


def sample_value_rows(trees: Sequence[Tree], config: RunConfig, returns: tuple[float, float]) -> list[TokenRow]:
    """At most ``update.value_rows`` tree paths, drawn evenly by the run's seed.

    Where rewards come on the way, r + V may leave the range of ``returns``, since V is an estimate: it is held within.
    The tree of a finished path whose return leaves the range stays as it is, for the head to refuse.
    """
    rows = [
        replace(row, value_targets=tuple(min(max(target, low), high) for target in row.value_targets))
        for tree in trees
        for low, high in [_reached(tree, returns)]
        for row in value_rows(tree, config.update.targets)
    ]
    random.Random(derive_seed(config.seed, "value_rows")).shuffle(rows)
    return rows[: config.update.value_rows]


def _reached(tree: Tree, returns: tuple[float, float]) -> tuple[float, float]:
    """The range of returns, wide enough for those that the tree's finished paths have."""
    found = [path_return(path, tree.discount) for path in finished_paths(tree)]
    return min([returns[0], *found]), max([returns[1], *found])


def by_task(trees: Sequence[Tree]) -> list[list[Tree]]:
    """The trees of each task, which some views compare with each other; tasks in the order of their first tree."""
    groups: dict[str, list[Tree]] = {}
    for tree in trees:
        groups.setdefault(tree.task.id, []).append(tree)
    return list(groups.values())


def scored_rows(trees: Sequence[Tree], config: AdvantageConfig) -> Iterator[AdvantageRow]:
    """The rows of every tree, its advantages taken among the trees of its task."""
    for group in by_task(trees):
        scored = advantages(group, config)
        for tree in group:
            yield from advantage_rows(tree, scored)


def informative(trees: Sequence[Tree], share: float) -> list[Tree]:
    """The ``share`` of trees whose returns differ most, in their order (StarPO-S, Wang et al. 2025)."""
    if share == 1:
        return list(trees)
    wanted = math.ceil(share * len(trees))
    ranked = sorted(range(len(trees)), key=lambda place: -return_spread(trees[place]))
    return [trees[place] for place in sorted(ranked[:wanted])]


def greedy_success(checkpoint: Checkpoint, config: RunConfig) -> Callable[[], float]:
    """Share of the validation tasks that the model, as its weights stand at the call, solves greedily."""
    policy = make_policy(checkpoint, config)
    env = environment(config)
    tasks = env.tasks("validation", config.update.validation_tasks)
    dynamics = play_on(env, config, "validate")

    def measure() -> float:
        training = checkpoint.model.training
        checkpoint.model.eval()
        policy.generator.forget()
        outcomes = asyncio.run(execute(policy.greedy(), dynamics, tasks, [0] * len(tasks), [()] * len(tasks)))
        checkpoint.model.train(training)
        return sum(outcome.success for outcome in outcomes) / len(outcomes)

    return measure

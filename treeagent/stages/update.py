"""Update a policy from stored trees: the driver that runs updates side by side, and the worker that makes one."""

import asyncio
import math
import os
import random
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from treeagent.config import COMPARING, Method, RunConfig
from treeagent.generators.chat import ChatFormat
from treeagent.learners.config import DistilConfig, DPOConfig, GRPOConfig, SFTConfig, ValueConfig
from treeagent.learners.distil import train_distil
from treeagent.learners.dpo import train_dpo
from treeagent.learners.grpo import train_grpo
from treeagent.learners.lora import with_adapter
from treeagent.learners.sft import train_sft
from treeagent.learners.sharding import led, sharing, whole_weights
from treeagent.learners.value import check_value_rows, fit_value
from treeagent.marks import Mark
from treeagent.rewards.components import read_rules
from treeagent.rewards.constraint import cost_tree, mean_costs, next_multiplier, penalised
from treeagent.rewards.reweigh import rescored
from treeagent.run.alarms import first_cause, short_of_memory, value_alarms
from treeagent.run.folder import Run
from treeagent.run.metrics import Emit, Event, logged
from treeagent.run.progress import Progress
from treeagent.run.trees import read_trees, run_marks, trees_by_task
from treeagent.search.node import Tree, finished_paths, path_return, return_spread
from treeagent.stages.build import (
    environment,
    greedy,
    in_turns,
    instances,
    make_chat,
    make_policy,
    play_on,
    value_head,
)
from treeagent.stages.hooks import training_hooks
from treeagent.stages.play import execute
from treeagent.store import shards
from treeagent.types import NothingToLearn, UserError, derive_seed
from treeagent.views.advantages import AdvantageConfig, AdvantageRow, advantage_rows, advantages
from treeagent.views.imitation import edited_rows, imitation_rows
from treeagent.views.pairs import preference_pairs
from treeagent.views.policy import policy_rows
from treeagent.views.spilled import Picked, Spilled
from treeagent.views.tokens import TokenRow
from treeagent.views.values import value_rows
from treeagent.workers.launch import launch
from treeagent.workers.processes import Workers, own_worker, run_jobs

Row = TypeVar("Row")


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
    """Where the updated checkpoint goes."""
    multipliers: Mapping[str, float] = field(default_factory=dict[str, float])
    """λ of each cost that has a budget."""
    process_weight: float = 0.0
    """``search.process_weight`` under which the trees grew."""
    marks: Sequence[Mark] = ()
    """What reviewers had said of these trees when the update began."""

    @property
    def scratch(self) -> Path:
        """Folder of the trainer's own checkpoints, from which an interrupted update resumes."""
        return self.out.with_name(f".{self.out.name}")


def fit_base(config: RunConfig, run: Run, progress: Progress, warm: Path) -> Path:
    """Fit the warm policy's value head on what search found. The result is the base policy that updates start from."""
    out = run.checkpoints / "base"
    if run.is_done("base"):
        return out
    checkpoint = load_checkpoint(warm, device_map=config.policy.device_map)
    head = value_head(checkpoint, config)
    with logged(run.log, progress) as on_event:
        fitted = fit_value(
            checkpoint.model,
            head,
            sample_value_rows(read_trees(run.trees), config, head.reward_range, run.checkpoints),
            ValueConfig(seed=config.seed),
            # Each epoch is a step, so that a fit that is repeated replaces its own rows of metrics.
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
) -> list[Path]:
    """Update ``checkpoint`` once by each method, all from the same trees.

    Args:
        trees: the run whose trees to learn from; by default this run.

    Returns:
        the folders of the updated checkpoints, in the order of ``methods``.

    Raises:
        UserError: the other run sampled at another temperature, and a method uses the log-probabilities of its samples.
        RunError: an update was begun with other trees.
    """
    source = trees or run
    drawn, wanted = source.config.policy.temperature, config.policy.temperature
    if drawn != wanted and (comparing := [method for method in methods if method in COMPARING]):
        raise UserError(
            f"policy.temperature is {wanted:g}, but the trees of {source.path} were sampled at {drawn:g}, with whose "
            f"log-probabilities {comparing[0]} compares the policy: set policy.temperature={drawn:g}"
        )
    for method in methods:
        run.take_trees(method, source)
    updates = [(checkpoint, method, run.checkpoints / method) for method in methods]
    names, grown = source.collections(), source.config.search.process_weight
    multipliers = constrain(config, run, "constraints", source.trees, names, {}, grown)
    return learn(config, run, progress, updates, names, source.trees, multipliers, grown)


def constrain(
    config: RunConfig,
    run: Run,
    stage: str,
    trees: Path,
    names: Sequence[str],
    before: Mapping[str, float],
    process_weight: float = 0.0,
) -> dict[str, float]:
    """The Lagrange multipliers of the budgets, one step after those ``before``: λ <- max(0, λ + η (mean cost - d)),
    where the mean is over the finished paths of the trees. Recorded as facts of ``stage``; empty without budgets."""
    rewards = config.rewards
    if not rewards.budgets:
        return {}
    if not run.is_done(stage):
        rules = read_rules(rewards)
        found = (
            tree for _, some in trees_by_task(trees, names) for tree in rescored(some, rewards, rules, process_weight)
        )
        costs = mean_costs(found, list(rewards.budgets))
        # A round in imagination alone measures nothing.
        rate = rewards.multiplier_rate if any(shards(trees, name) for name in names) else 0.0
        stepped = {
            name: next_multiplier(before.get(name, 0.0), rate, costs[name], budget)
            for name, budget in rewards.budgets.items()
        }
        figures = {f"cost/{name}": cost for name, cost in costs.items()}
        figures |= {f"multiplier/{name}": value for name, value in stepped.items()}
        step = sum(each.startswith("constraints") for each in run.stages())
        run.log("constraints", {"step": step, **figures})
        run.finish(stage, {"costs": costs, "multipliers": stepped})
    told: dict[str, float] = run.facts(stage)["multipliers"]
    return told


def learn(
    config: RunConfig,
    run: Run,
    progress: Progress,
    updates: Sequence[tuple[Path, Method, Path]],
    names: Sequence[str],
    trees: Path | None = None,
    multipliers: Mapping[str, float] | None = None,
    process_weight: float = 0.0,
    worker: Workers | None = None,
) -> list[Path]:
    """Run updates side by side.

    Args:
        updates: for each the checkpoint to start from, the method, and the folder of the new checkpoint.
        names: of the shards to learn from.
        trees: the folder of these shards; by default the run's.
        multipliers: λ of each cost that has a budget.
        process_weight: ``search.process_weight`` under which the trees grew.
        worker: where they run, one after the other; by default where the settings say.
    """
    for checkpoint, _, out in updates:
        run.take(out.name, checkpoint)
    marks = run_marks(trees or run.trees)
    jobs = [
        TrainJob(config, checkpoint, method, trees or run.trees, names, out, multipliers or {}, process_weight, marks)
        for checkpoint, method, out in updates
        if not run.is_done(out.name)
    ]
    with logged(run.log, progress) as on_event:
        try:
            for job, facts in run_jobs(train, jobs, _where(config), on_event, worker):
                run.finish(job.out.name, facts)
        except NothingToLearn as symptom:
            cause = first_cause(run.stages(), read_trees(trees or run.trees, names))
            raise NothingToLearn(f"{cause}; so {symptom}" if cause else str(symptom)) from symptom
    return [out for _, _, out in updates]


def updating_worker(config: RunConfig) -> AbstractContextManager[Workers]:
    """A worker for updates alone, which ``learn`` may use in a thread while another thread searches."""
    return own_worker(_where(config))


def _where(config: RunConfig) -> RunConfig:
    """The settings by which jobs of updates are handed out: the processes of one update use the whole machine."""
    return replace(config, engine="local", workers=1) if config.update.processes > 1 else config


def train(job: TrainJob, emit: Emit) -> dict[str, Any]:
    """``train_policy`` in ``update.processes`` processes. Returns what it returns, raises what it raises or ``launch``
    does."""
    if job.config.update.processes == 1:
        return train_policy(job, emit)
    job.scratch.mkdir(parents=True, exist_ok=True)
    return launch(train_policy, job, job.config, job.scratch / "processes.log", emit)


def train_policy(job: TrainJob, emit: Emit, leads: bool = True) -> dict[str, Any]:
    """Update the policy, refit the value head to the changed hidden states, save both.

    Args:
        leads: of processes that train together, one leads: only it validates, fits the head and saves.

    Returns:
        the facts that the stage records; empty in a process that does not lead.

    Raises:
        NothingToLearn: the trees teach nothing.
        UserError: the trees are another model's, or a setting does not fit.
        TrainingDiverged: a loss or a gradient is NaN or infinite; nothing is saved.
    """
    config, update, fitting = job.config, job.config.update, ValueConfig(seed=job.config.seed)
    loaded = load_checkpoint(job.checkpoint, device_map=_place(config))
    head = value_head(loaded, config)
    adapted = with_adapter(loaded.model, config.policy.lora, derive_seed(config.seed, "lora"))
    checkpoint = replace(loaded, model=adapted)
    taught = learn_rows(job, checkpoint, head.reward_range)
    value_rows, rows = taught.values, taught.rows
    check_value_rows(head, value_rows, fitting)  # fails before the policy is trained, not after
    validate = greedy_success(checkpoint, config) if leads else lambda: 0.0  # only the one that leads is asked
    hooks = training_hooks(emit, job.out.name, job.scratch, validate)
    model, tokenizer, temperature = checkpoint.model, checkpoint.tokenizer, config.policy.temperature
    match job.method:
        case "rft":
            result = train_sft(model, tokenizer, rows, config.learner(SFTConfig, update.rft), **hooks)
        case "distil":
            result = train_distil(model, tokenizer, rows, config.learner(DistilConfig, update.distil), **hooks)
        case "dpo":
            dpo = config.learner(DPOConfig, update.dpo)
            result = train_dpo(model, tokenizer, rows, dpo, temperature=temperature, **hooks)
        case "grpo":
            grpo = config.learner(GRPOConfig, update.grpo)
            result = train_grpo(model, tokenizer, rows, grpo, temperature=temperature, **hooks)
    fitted = led(model, lambda: fit_value(model, head, value_rows, fitting), leads=leads)
    weights = whole_weights(model)
    if fitted is None:
        return {}
    save_checkpoint(Checkpoint(model, tokenizer, head), job.out, weights)
    shutil.rmtree(job.scratch, ignore_errors=True)
    alarms: list[str] = []
    if result.best_step == 0:
        alarms.append(
            f"{job.out.name} acts as the policy that it was to improve: no later validation solved more of the "
            f"{update.validation_tasks} tasks than the {result.best_validation:.0%} before the first step; learn from "
            f"more trees, validate on more tasks (update.validation_tasks), or change update.{job.method}.learning_rate"
        )
    if result.parts > 1:
        alarms.append(short_of_memory(job.out.name, f"update.{job.method}", result.parts))
    used = taught.marks
    return {"update": asdict(result), "value": asdict(fitted), "alarms": alarms, **({"marks": used} if used else {})}


@dataclass(frozen=True, slots=True)
class Taught:
    """What trees teach a policy and its value head."""

    rows: Sequence[Any]
    """Rows of the method's view, on disk."""
    values: list[TokenRow]
    """The sampled rows of value targets."""
    marks: int
    """How many marks of reviewers the trees have."""


def learn_rows(job: TrainJob, checkpoint: Checkpoint, returns: tuple[float, float]) -> Taught:
    """The rows that a job learns from. The trees of one task are in memory at a time, and the rows lie on the disk of
    the new checkpoint, so that memory hardly grows with the number of trees.

    Args:
        returns: range of the value head.

    Raises:
        UserError: the trees are another model's, or a setting does not fit.
    """
    config = job.config
    chat, rewards = make_chat(checkpoint, config), config.rewards
    rules = read_rules(rewards) if rewards.active else {}

    def groups() -> Iterator[tuple[Sequence[int], list[Tree]]]:
        for places, trees in trees_by_task(job.trees, job.names, job.marks):
            yield places, rescored(trees, rewards, rules, job.process_weight) if rewards.active else trees

    kept = None
    if config.update.keep_trees < 1:
        found = chain.from_iterable(zip(places, trees, strict=True) for places, trees in groups())
        spreads = dict(sorted((place, return_spread(tree)) for place, tree in found))
        kept = set(informative(list(spreads.values()), config.update.keep_trees))
    folder, marks = job.out.parent, 0
    rows, values = _InOrder[Any](folder), _InOrder[TokenRow](folder)
    for places, trees in groups():
        some = [(place, tree) for place, tree in zip(places, trees, strict=True) if kept is None or place in kept]
        for place, tree in some:
            refuse_foreign(tree, chat, job)
            read_ends([tree], chat)
            marks += sum(len(node.marks) for node in tree.nodes())
            values.add(place, clipped_value_rows(tree, config, returns))
        for place, taught in method_rows(job, some, chat):
            rows.add(place, taught)
    return Taught(rows.sorted(), sampled(values.sorted(), config), marks)


def method_rows(
    job: TrainJob, trees: Sequence[tuple[int, Tree]], chat: ChatFormat
) -> Iterator[tuple[int, Iterable[object]]]:
    """The rows of a job's method, of all trees of a task, which have their places: with the place among the rows of
    other tasks.

    A view that compares the trees of a task yields them at the first one's place."""
    config, update = job.config, job.config.update
    multipliers = {name: value for name, value in job.multipliers.items() if value}
    steered = [(place, penalised(tree, multipliers) if multipliers else tree) for place, tree in trees]
    match job.method:
        case "rft":
            yield from ((place, imitation_rows(tree, update.imitation)) for place, tree in steered)
            # Turns that reviewers wrote come behind all others.
            yield from ((place + _LAST, edited_rows(tree, chat.encode_action)) for place, tree in trees)
        case "distil":
            yield from ((place, policy_rows(tree, update.targets, config.search)) for place, tree in steered)
        case "dpo" if steered:
            group = [tree for _, tree in steered]
            yield trees[0][0], preference_pairs(group, update.pairs, config.search.critic_weight)
        case "grpo" if steered:
            yield trees[0][0], scored_rows([tree for _, tree in trees], update.advantages, multipliers)
        case _:
            pass


_LAST = 1 << 40
"""Added to the place of a tree to put rows behind those of all trees."""


class _InOrder(Generic[Row]):
    """Rows on disk that are added in another order than that in which they are read."""

    def __init__(self, folder: Path | None = None) -> None:
        self._rows, self._places = Spilled[Row](folder), array("q")

    def add(self, place: int, rows: Iterable[Row]) -> None:
        """Add rows to those of a place."""
        for row in rows:
            self._rows.append(row)
            self._places.append(place)

    def sorted(self) -> Sequence[Row]:
        """The rows by place; those of one place as they were added."""
        order = np.argsort(np.frombuffer(self._places, dtype=np.int64), kind="stable")
        return Picked(self._rows, array("q", order.tobytes()))


def _place(config: RunConfig) -> str | None:
    """The device that the weights of an update are loaded on. Processes that train together have one GPU each. With
    FSDP the weights stay off the GPU at first, since one GPU may not hold them."""
    place = config.policy.device_map
    if place in (None, "cpu") or config.update.processes == 1:
        return place
    return None if sharing() else f"cuda:{os.environ['LOCAL_RANK']}"


def refuse_foreign(tree: Tree, chat: ChatFormat, job: TrainJob) -> None:
    """Check that a tree was searched in the tokens of the checkpoint that is trained: that its ``chat``, which has the
    instructions and demonstrations of the settings, writes the tree's task alike. Raises ``UserError`` where it does
    not."""
    if tree.root.context_ids and chat.prompt_ids(tree.root.state.messages) != tree.root.context_ids:
        raise UserError(
            f"the tokenizer or chat template of {job.checkpoint} writes task {tree.task.id} in {job.trees} in "
            "other tokens than the policy that searched it: update that policy, with its policy.instructions, "
            "policy.shots and policy.format, or collect trees with this one"
        )


def read_ends(trees: Sequence[Tree], chat: ChatFormat) -> None:
    """Add the tokens of final states that lack them. A search without a value head does not tokenise final states, but
    fitting a head needs them."""
    for tree in trees:
        for node in tree.nodes():
            if node.terminated and not node.context_ids and not node.state.messages[-1].partial:
                reading = chat.read(node.state.messages)
                node.context_ids, node.left_out = chat.added_ids(reading), reading.left_out


def sample_value_rows(
    trees: Iterable[Tree], config: RunConfig, returns: tuple[float, float], folder: Path | None = None
) -> list[TokenRow]:
    """At most ``update.value_rows`` of the ``clipped_value_rows`` of trees, drawn uniformly by the run's seed.

    Args:
        folder: on whose disk all rows lie meanwhile; by default the system's temporary folder.
    """
    rows = Spilled[TokenRow](folder)
    for tree in trees:
        for row in clipped_value_rows(tree, config, returns):
            rows.append(row)
    return sampled(rows, config)


def sampled(rows: Sequence[TokenRow], config: RunConfig) -> list[TokenRow]:
    """At most ``update.value_rows`` rows, drawn uniformly by the run's seed."""
    places = array("q", range(len(rows)))
    random.Random(derive_seed(config.seed, "value_rows")).shuffle(places)
    return [rows[place] for place in places[: config.update.value_rows]]


def clipped_value_rows(tree: Tree, config: RunConfig, returns: tuple[float, float]) -> Iterator[TokenRow]:
    """The rows of value targets of a tree.

    With rewards along the way, r + V may leave the range ``returns``, since V is an estimate: such targets are clipped.
    Outcomes of finished paths are not clipped: where they leave the range, ``fit_value`` raises. Where
    ``rewards.weights`` pays components, they are clipped too: the head may be older than the weights.
    """
    weighed = bool(config.rewards.weights)
    found = [] if weighed else [path_return(path) for path in finished_paths(tree)]
    low, high = min([returns[0], *found]), max([returns[1], *found])
    for row in value_rows(tree, config.update.values):
        clipped = tuple(min(max(target, low), high) for target in row.value_targets)
        yield replace(row, value_targets=clipped)


def scored_rows(
    trees: Sequence[Tree], config: AdvantageConfig, multipliers: Mapping[str, float] | None = None
) -> Iterator[AdvantageRow]:
    """The rows of all trees of a task. Advantages are computed over them together, against the costs that have
    multipliers."""
    costs = [(weight, [cost_tree(tree, name) for tree in trees]) for name, weight in (multipliers or {}).items()]
    scored = advantages(trees, config, costs)
    for tree in trees:
        yield from advantage_rows(tree, scored)


def informative(spreads: Sequence[float], share: float) -> list[int]:
    """The places of the ``share`` of trees whose returns have the widest spread, in their given order (StarPO-S, Wang
    et al. 2025).

    Args:
        spreads: ``return_spread`` of every tree.
    """
    wanted = math.ceil(share * len(spreads))
    ranked = sorted(range(len(spreads)), key=lambda place: -spreads[place])
    return sorted(ranked[:wanted])


def greedy_success(checkpoint: Checkpoint, config: RunConfig) -> Callable[[], float]:
    """A function that plays the validation tasks greedily with the model's current weights. It returns the share
    solved."""
    policy = make_policy(checkpoint, config)
    env = environment(config)
    tasks = env.tasks("validation", config.update.validation_tasks)
    dynamics = in_turns(play_on(instances(config), config, "validate"), config, policy.grammar)

    def measure() -> float:
        training = checkpoint.model.training
        checkpoint.model.eval()
        policy.generator.forget()
        player = greedy(policy, config)
        outcomes, _ = asyncio.run(execute(player, dynamics, tasks, [0] * len(tasks), [()] * len(tasks)))
        checkpoint.model.train(training)
        return sum(outcome.success for outcome in outcomes) / len(outcomes)

    return measure

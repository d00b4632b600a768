"""The pieces of a run that workers share out: waves of searches, waves of evaluations, one method's update.

A job is a value and depends on nothing but itself, so results are the same whatever the number of workers.
"""

import asyncio
import math
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from treeagent.actors import (
    environment,
    in_turns,
    leaf_value,
    load_actors,
    make_chat,
    make_policy,
    play_on,
    tasks_at,
    value_head,
    variations,
)
from treeagent.advantages import AdvantageConfig, AdvantageRow, advantage_rows, advantages
from treeagent.checkpoint import (
    Checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from treeagent.config import Method, RunConfig
from treeagent.evaluate import Mode, Outcome, execute, play, replan
from treeagent.generators.chat import ChatFormat
from treeagent.health import finished_paths, return_spread
from treeagent.imagine import Imagination, call_imagined, planner, settle, world_model
from treeagent.learners.dpo import train_dpo
from treeagent.learners.grpo import train_grpo
from treeagent.learners.lora import with_adapter
from treeagent.learners.sft import train_sft
from treeagent.learners.sharding import led, sharing, whole_weights
from treeagent.learners.value import check_value_rows, fit_value
from treeagent.learners.watch import Hooks, TrainResult
from treeagent.pairs import preference_pairs
from treeagent.run import COLLECTED
from treeagent.search.methods import make_search
from treeagent.search.node import Node, Tree, path_return
from treeagent.search.record import from_record, to_record
from treeagent.seeds import derive_seed
from treeagent.store import read_as, write_shard
from treeagent.targets import TokenRow, imitation_rows, value_rows
from treeagent.telemetry import Cost, Emit, Event, Meter
from treeagent.types import Refused, Split


@dataclass(frozen=True, slots=True)
class WaveJob:
    """Tasks of a split under one checkpoint."""

    config: RunConfig
    checkpoint: Path
    """A folder, or a hub name."""
    name: str
    """Of the shards its trees go to; the policy's name for an evaluation."""
    index: int
    tasks: Sequence[int]
    """Their places in the split."""
    trees: Path | None
    """Where its trees go; None keeps none."""
    split: Split = "train"
    mode: Mode = "mcts"
    world: Path | None = None
    """The folder of the world model that the trees grow in; none grows them in the environment."""
    variants: Sequence[int] = ()
    """Which harder variation of each task is meant, as ``Env.variations`` counts them; none means the tasks."""

    @property
    def shard(self) -> str:
        """The file that a finished wave of searches leaves."""
        return f"{self.name}-{self.index:05d}.jsonl.zst"


def search_wave(job: WaveJob, emit: Emit) -> Cost:
    """Grow one tree a task and store them as one shard. Returns what it cost, and tells it once a second.

    In a world model the tasks are those of the environment, whose opening costs no step; what the trees promise is
    verified before they are stored.
    """
    config = job.config
    env = environment(config)
    actors, whole = load_actors(job.checkpoint, config)
    dynamics = play_on(env, config, job.name)
    tasks = tasks_at(env, job.split, job.tasks)
    if job.variants:
        wanted = zip(tasks, job.variants, strict=True)
        tasks = [variations(config, env, task)[number] for task, number in wanted]
    seeds = [derive_seed(config.seed, job.name, task.id) for task in tasks]
    meter, told = Meter(whole.generator.usage, dynamics), time.monotonic()

    def on_wave(trees: Sequence[Tree]) -> None:
        nonlocal told
        if time.monotonic() - told >= 1.0:
            told = time.monotonic()
            emit(Event(job.name, index=job.index, cost=meter.read(trees)))

    turns = in_turns(dynamics, config, whole.grammar)
    with world_model(config, job.world, env) if job.world is not None else nullcontext() as model:
        stepped = turns if model is None else in_turns(Imagination(dynamics, model), config, whole.grammar)
        value = leaf_value(actors.value, whole, stepped, config)
        # A model's whole wave is answered at once, which no step of it must be given up for.
        patient = config.search if model is None else replace(config.search, step_seconds=None)
        search = make_search(actors.sampling, stepped, patient, value, actors.critic)
        trees = asyncio.run(search.run(tasks, seeds, on_wave))
    if job.world is not None:
        asyncio.run(settle(trees, turns, config.world.verify_steps, config.search.step_seconds))
    elif env.origin == "imagined":
        call_imagined(trees)
    whole.forget()
    if job.trees is not None:
        write_shard(job.trees, job.name, job.index, map(to_record, trees))
    return meter.read(trees)


def evaluate_wave(job: WaveJob, emit: Emit) -> tuple[list[Outcome], float]:
    """Play held-out tasks; trees of a search are stored. Returns outcomes in the tasks' order, and seconds."""
    started = time.perf_counter()
    config = job.config
    env = environment(config)
    actors, whole = load_actors(job.checkpoint, config)
    tasks, seed = tasks_at(env, job.split, job.tasks), derive_seed(config.seed, "evaluate")
    verified = in_turns(play_on(env, config, "evaluate"), config, whole.grammar)
    imagines = bool(config.evaluate.world) and job.mode != "greedy"
    with planner(config, env) if imagines else nullcontext() as model:
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


def train_policy(job: TrainJob, emit: Emit, *, leads: bool = True) -> dict[str, Any]:
    """Update, refit the value head to the changed hidden states, save. Returns what is worth remembering.

    Of processes that train together one ``leads``: it alone validates, fits the head and saves, and has something to
    return.

    Raises:
        NothingToLearn: the trees teach nothing.
        Refused: the trees are another model's, or a setting does not fit.
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
        Refused: the checkpoint reads a tree's task as other tokens than the policy that searched it, or cannot read
            its tokens.
    """
    chat = make_chat(checkpoint, job.config)
    vocabulary = checkpoint.model.config.get_text_config().vocab_size
    for tree in trees:
        task = f"task {tree.task.id} in {job.trees}"
        largest = max((max(ids) for node in tree.nodes() for ids in _token_ids(node) if ids), default=0)
        if largest >= vocabulary:
            raise Refused(
                f"the tree of {task} holds token {largest}, but {job.checkpoint} knows {vocabulary} tokens: update the "
                "policy that searched these trees, or collect trees with this one"
            )
        if tree.root.context_ids and chat.prompt_ids(tree.root.state.messages) != tree.root.context_ids:
            raise Refused(
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


def read_trees(folder: Path, names: Sequence[str] = (COLLECTED,)) -> list[Tree]:
    """The searched training trees of shards of these names.

    Raises:
        Refused: a tree was collected by text alone.
    """
    trees = [tree for name in names for tree in read_as(from_record, folder, name)]
    for tree in trees:
        if tree.text_only:
            raise Refused(
                f"the tree of task {tree.task.id} in {folder} holds actions without token ids: it was collected with "
                "policy.remote.text_only, and cannot be learned from; collect with a server that gives token ids"
            )
    return trees


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

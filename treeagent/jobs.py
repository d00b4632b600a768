"""The pieces of a run that processes share out: waves of searches, waves of evaluations, one method's update.

A job is a value and depends on nothing but itself, so results are the same whatever the number of workers.
"""

import asyncio
import math
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch

from treeagent.advantages import AdvantageConfig, AdvantageRow, advantage_rows, advantages
from treeagent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from treeagent.config import Method, PolicyConfig, RunConfig
from treeagent.critic import LMCritic
from treeagent.envs import EnvDynamics, WorkerEnv, make_env
from treeagent.envs.base import Env
from treeagent.evaluate import Actors, Mode, Outcome, execute, play
from treeagent.generators.chat import ChatFormat
from treeagent.generators.local import LocalGenerator
from treeagent.health import return_spread
from treeagent.learners.dpo import train_dpo
from treeagent.learners.grpo import train_grpo
from treeagent.learners.sft import train_sft
from treeagent.learners.value import fit_value
from treeagent.learners.watch import Hooks
from treeagent.pairs import preference_pairs
from treeagent.policy import HeadValue, LLMPolicy
from treeagent.run import COLLECTED
from treeagent.search.config import SearchConfig
from treeagent.search.methods import make_search
from treeagent.search.node import Tree
from treeagent.search.record import from_record, to_record
from treeagent.search.values import MixedValue, RolloutValue
from treeagent.seeds import derive_seed
from treeagent.split import SplitDynamics, SplitPolicy
from treeagent.store import read_as, write_shard
from treeagent.targets import TokenRow, imitation_rows, value_rows
from treeagent.telemetry import Cost, Meter
from treeagent.types import Dynamics, Policy, Split, Task, Value
from treeagent.value_head import ValueHead

Job = TypeVar("Job")
Result = TypeVar("Result")


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

    @property
    def shard(self) -> str:
        """The file that a finished wave of searches leaves."""
        return f"{self.name}-{self.index:05d}.jsonl.zst"


@dataclass(frozen=True, slots=True)
class Event:
    """What a running job tells: progress, metrics, what its searches have cost so far."""

    name: str
    done: int = 0
    total: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    index: int = 0
    """Of the wave that ``cost`` is of."""
    cost: Cost | None = None


Emit = Callable[[Event], None]


def search_wave(job: WaveJob, emit: Emit) -> Cost:
    """Grow one tree a task and store them as one shard. Returns what it cost, and tells it once a second."""
    config = job.config
    env = environment(config)
    actors, whole = load_actors(job.checkpoint, config)
    dynamics = play_on(env, config, job.name)
    tasks = tasks_at(env, job.split, job.tasks)
    seeds = [derive_seed(config.seed, job.name, task.id) for task in tasks]
    meter, told = Meter(whole.generator, dynamics), time.monotonic()

    def on_wave(trees: Sequence[Tree]) -> None:
        nonlocal told
        if time.monotonic() - told >= 1.0:
            told = time.monotonic()
            emit(Event(job.name, index=job.index, cost=meter.read(trees)))

    turns = in_turns(dynamics, config)
    value = leaf_value(actors.value, whole, turns, config)
    search = make_search(actors.sampling, turns, config.search, value, actors.critic)
    trees = asyncio.run(search.run(tasks, seeds, on_wave))
    whole.generator.forget()  # no other wave shares its prefixes
    if job.trees is not None:
        write_shard(job.trees, job.name, job.index, map(to_record, trees))
    return meter.read(trees)


def evaluate_wave(job: WaveJob, emit: Emit) -> tuple[list[Outcome], float]:
    """Play held-out tasks; trees of a search are stored. Returns outcomes in the tasks' order, and seconds."""
    started = time.perf_counter()
    config = job.config
    env = environment(config)
    actors, whole = load_actors(job.checkpoint, config)
    blind = in_turns(play_on(env, config, "evaluate", reveal_reward=False), config)
    outcomes, trees = asyncio.run(
        play(
            replace(actors, value=leaf_value(actors.value, whole, blind, config)),
            blind,
            in_turns(play_on(env, config, "evaluate"), config),
            tasks_at(env, job.split, job.tasks),
            job.mode,
            config.evaluate,
            config.search,
            derive_seed(config.seed, "evaluate"),
        )
    )
    whole.generator.forget()
    seconds = time.perf_counter() - started
    if trees and job.trees is not None:
        write_shard(job.trees, f"evaluate-{job.name}-{job.mode}", job.index, map(to_record, trees))
    return outcomes, seconds


def tasks_at(env: Env, split: Split, places: Sequence[int]) -> list[Task]:
    """The tasks at ``places`` of a split, neighbours fetched together."""
    tasks: list[Task] = []
    while len(tasks) < len(places):
        start = len(tasks)
        stop = start + 1
        while stop < len(places) and places[stop] == places[stop - 1] + 1:
            stop += 1
        tasks += env.tasks(split, stop - start, places[start])
    return tasks


def environment(config: RunConfig) -> Env:
    """The run's environment, made once in each process."""
    settings = config.environment
    limits = (settings.call_seconds, settings.episode_seconds) if settings.worker else None
    return _environment(settings.name, tuple(sorted(settings.options.items())), limits)


@lru_cache(maxsize=1)
def _environment(
    name: str, options: tuple[tuple[str, int | float | str | bool], ...], limits: tuple[float, float | None] | None
) -> Env:
    if limits is None:
        return make_env(name, dict(options))
    return WorkerEnv(name, dict(options), call_seconds=limits[0], episode_seconds=limits[1])


def play_on(env: Env, config: RunConfig, name: str, *, reveal_reward: bool = True) -> EnvDynamics:
    """The environment as the dynamics of a job; ``name`` seeds its luck, if it is stochastic."""
    return EnvDynamics(
        env,
        max_steps=config.environment.max_steps,
        reveal_reward=reveal_reward,
        seed=derive_seed(config.seed, name),
        snapshot_bytes=config.environment.snapshot_bytes,
    )


def in_turns(dynamics: EnvDynamics, config: RunConfig) -> Dynamics:
    """The dynamics in steps as large as the search's nodes."""
    return SplitDynamics(dynamics) if config.search.granularity == "split" else dynamics


def load_actors(checkpoint: Path, config: RunConfig) -> tuple[Actors, LLMPolicy]:
    """Who plays a checkpoint in a search, and its policy in whole turns; they share one generator."""
    whole, head = _load_policy(checkpoint, config.policy)
    return make_actors(whole, head, config.search), whole


@lru_cache(maxsize=1)
def _load_policy(checkpoint: Path, settings: PolicyConfig) -> tuple[LLMPolicy, ValueHead | None]:
    loaded = load_checkpoint(checkpoint)
    return make_policy(loaded, settings), loaded.head


def make_policy(checkpoint: Checkpoint, settings: PolicyConfig) -> LLMPolicy:
    """A policy on a checkpoint in memory; call ``forget`` on its generator when the weights change."""
    generator = LocalGenerator(checkpoint.model, cache_bytes=settings.cache_bytes)
    chat = ChatFormat(checkpoint.tokenizer)
    return LLMPolicy(generator, chat, temperature=settings.temperature, max_new_tokens=settings.max_new_tokens)


def make_actors(whole: LLMPolicy, head: ValueHead | None, search: SearchConfig) -> Actors:
    """As the search's settings want them: thoughts apart, a critic."""
    return Actors(
        sampling=SplitPolicy(whole) if search.granularity == "split" else whole,
        greedy=whole.greedy(),
        value=None if head is None else HeadValue(whole.generator, whole.chat, head),
        critic=LMCritic(whole.generator, whole.chat) if search.critic_weight else None,
    )


def leaf_value(head: Value | None, policy: Policy, dynamics: Dynamics, config: RunConfig) -> Value | None:
    """What judges leaves: the value head, rollouts of the policy, or a mixture."""
    weight = config.search.rollout_weight
    if not weight:
        return head
    rollouts = RolloutValue(
        policy, dynamics, max_steps=config.environment.max_steps, discount=config.search.discount, value=head
    )
    return rollouts if head is None or weight == 1 else MixedValue([head, rollouts], [1 - weight, weight])


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


def train_policy(job: TrainJob, emit: Emit) -> dict[str, Any]:
    """Update, refit the value head to the changed hidden states, save. Returns what is worth remembering."""
    update, checkpoint = job.config.update, load_checkpoint(job.checkpoint)
    head = checkpoint.head or ValueHead(checkpoint.model.config.hidden_size)
    trees = informative(read_trees(job.trees, job.names), update.keep_trees)
    hooks = Hooks(
        on_metrics=lambda metrics: emit(Event(job.out.name, metrics=metrics)),
        on_progress=lambda done, total: emit(Event(job.out.name, done=done, total=total)),
        validate=greedy_success(checkpoint, job.config),
        checkpoint_dir=job.scratch,
    )
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    match job.method:
        case "rft":
            imitated = [row for tree in trees for row in imitation_rows(tree, update.targets)]
            result = train_sft(model, tokenizer, imitated, update.rft, **hooks)
        case "dpo":
            pairs = [pair for group in by_task(trees) for pair in preference_pairs(group, update.pairs)]
            dpo = replace(update.dpo, temperature=job.config.policy.temperature)
            result = train_dpo(model, tokenizer, pairs, dpo, **hooks)
        case "grpo":
            scored = list(scored_rows(trees, update.advantages))
            grpo = replace(update.grpo, temperature=job.config.policy.temperature)
            result = train_grpo(model, tokenizer, scored, grpo, **hooks)
    fitted = fit_value(model, head, sample_value_rows(trees, job.config), update.value)
    save_checkpoint(Checkpoint(model, tokenizer, head), job.out)
    shutil.rmtree(job.scratch, ignore_errors=True)
    return {"update": asdict(result), "value": asdict(fitted)}


def sample_value_rows(trees: Sequence[Tree], config: RunConfig) -> list[TokenRow]:
    """At most ``update.value_rows`` tree paths, drawn evenly by the run's seed."""
    rows = [row for tree in trees for row in value_rows(tree, config.update.targets)]
    random.Random(derive_seed(config.seed, "value_rows")).shuffle(rows)
    return rows[: config.update.value_rows]


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
    """The searched training trees of shards of these names."""
    return [tree for name in names for tree in read_as(from_record, folder, name)]


def greedy_success(checkpoint: Checkpoint, config: RunConfig) -> Callable[[], float]:
    """Share of the validation tasks that the model, as its weights stand at the call, solves greedily."""
    policy = make_policy(checkpoint, config.policy)
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


def run_jobs(
    work: Callable[[Job, Emit], Result], jobs: Sequence[Job], workers: int, on_event: Emit = lambda event: None
) -> Iterator[tuple[Job, Result]]:
    """Results as they come; events arrive in this process while the jobs run. With one worker, all is done here."""
    if workers == 1 or len(jobs) <= 1:
        for job in jobs:
            with _one_thread():
                result = work(job, on_event)
            yield job, result
        return
    pool = _kept if _kept is not None else _Pool(min(workers, len(jobs)))
    try:
        yield from pool.run(work, jobs, on_event)
    finally:
        if pool is not _kept:
            pool.close()


@contextmanager
def kept_workers(count: int) -> Iterator[None]:
    """Inside, all calls of ``run_jobs`` with several workers share ``count`` of them, which take seconds to start."""
    global _kept
    _kept = None if count == 1 else _Pool(count)
    try:
        yield
    finally:
        if _kept is not None:
            _kept.close()
        _kept = None


class _Pool:
    """Worker processes and the way by which their events come here."""

    def __init__(self, count: int) -> None:
        self._count = count
        # spawn: a forked copy of a process that has run torch can hang in its thread pools, and inherits our locks.
        self._context = multiprocessing.get_context("spawn")
        self._queue: multiprocessing.Queue[Event | None] = self._context.Queue()
        self._on_event: Emit = lambda event: None
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._executor = self._start()

    def run(
        self, work: Callable[[Job, Emit], Result], jobs: Sequence[Job], on_event: Emit
    ) -> Iterator[tuple[Job, Result]]:
        self._on_event = on_event
        try:
            futures = {self._executor.submit(_in_worker, work, job): job for job in jobs}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except GeneratorExit:  # the caller has enough
            self._end()
            self._executor = self._start()
            raise
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._queue.put(None)
        self._listener.join()

    def _start(self) -> ProcessPoolExecutor:
        executor = ProcessPoolExecutor(
            self._count, mp_context=self._context, initializer=_start_worker, initargs=(self._queue,)
        )
        for _ in range(self._count):  # each starts a process, so that it is ready when the first jobs come
            executor.submit(os.getpid)
        return executor

    def _end(self) -> None:
        """Without waiting for what is running."""
        for process in list((self._executor._processes or {}).values()):
            process.terminate()
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _listen(self) -> None:
        while (event := self._queue.get()) is not None:
            self._on_event(event)


_kept: _Pool | None = None
"""The workers that ``kept_workers`` shares."""


@contextmanager
def _one_thread() -> Iterator[None]:
    """As in a worker, so that sums are taken in the same order wherever a job runs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


_events: "multiprocessing.Queue[Event | None] | None" = None
"""In a worker: the way to the parent."""


def _start_worker(queue: "multiprocessing.Queue[Event | None]") -> None:
    global _events
    _events = queue
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    torch.set_num_threads(1)  # for small models threads cost more than they bring


def _in_worker(work: Callable[[Job, Emit], Result], job: Job) -> Result:
    assert _events is not None
    return work(job, _events.put)

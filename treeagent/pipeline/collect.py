"""Search training tasks: the driver splits them into batches, and a worker grows one tree for each task of a batch."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from treeagent.config import RunConfig
from treeagent.pipeline import build
from treeagent.pipeline.folder import COLLECTED, Run, checkpoint_name
from treeagent.pipeline.imagination import Imagination, verify_all, world_model
from treeagent.pipeline.metrics import Cost, Emit, Event, meter
from treeagent.pipeline.processes import run_jobs
from treeagent.pipeline.progress import Progress
from treeagent.pipeline.rewards import Place, RewardedDynamics, make_reward
from treeagent.pipeline.trees import stored_trees, write_trees
from treeagent.search.node import Tree
from treeagent.search.searcher import make_search
from treeagent.store import shards
from treeagent.types import Dynamics, derive_seed
from treeagent.views.signal import signal_figures, value_signal
from treeagent.visible import visible


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A batch of tasks for one worker. The result is the same wherever and whenever the job runs, so a run that was
    killed repeats only the unfinished jobs."""

    config: RunConfig
    checkpoint: Path
    """The policy: a folder, or a hub name."""
    name: str
    """Name of the stage, and of the shards that hold the trees."""
    index: int
    """Number of the batch and of its shard."""
    tasks: Sequence[int]
    """Indices of the tasks in the split."""
    trees: Path | None
    """Folder that the trees are written to; None discards them."""

    def write(self, folder: Path, trees: Sequence[Tree]) -> None:
        """Store trees or episodes as one shard, each with the index of its task and the name of its policy."""
        for tree, place in zip(trees, self.tasks, strict=True):
            tree.place, tree.policy = place, checkpoint_name(self.checkpoint, folder.parent)
        write_trees(folder, self.name, self.index, trees)


@dataclass(frozen=True, slots=True)
class SearchJob(BatchJob):
    """A batch of training tasks to search."""

    world: Path | None = None
    """Folder of the world model in which the trees grow; None grows them in the environment."""


def collect(
    config: RunConfig,
    run: Run,
    progress: Progress,
    checkpoint: Path,
    name: str = COLLECTED,
    tasks: Sequence[int] | None = None,
    world: Path | None = None,
) -> None:
    """Search the training tasks with the indices ``tasks``, by default the first ``collect.tasks``, one tree each, as
    the stage ``name``, in the environment or a world model. Batches whose shards are on disk are kept."""
    tasks = range(config.collect.tasks) if tasks is None else tasks
    if not tasks:
        return
    parts = batches(config, run, tasks)
    jobs = [SearchJob(config, checkpoint, name, index, part, run.trees, world) for index, part in enumerate(parts)]
    run.record_checkpoint(name, checkpoint)
    if run.is_done(name) and len(shards(run.trees, name)) == run.facts(name)["batches"]:
        return
    started, costs = time.perf_counter(), dict[int, Cost]()
    waiting = [job for job in jobs if not shards(run.trees, name, job.index)]
    stored = Cost.of(stored_trees(run.trees, name))

    def metrics() -> dict[str, float]:
        return sum(costs.values(), Cost()).metrics(time.perf_counter() - started, stored)

    # A run with rounds searches several times, so each search has its own name in the progress output.
    with progress.track(name.replace(COLLECTED, "search", 1), len(tasks)) as advance:
        advance(len(tasks) - sum(len(job.tasks) for job in waiting))

        def add(index: int, cost: Cost, done: int = 0) -> None:
            costs[index] = cost
            advance(done, sum(costs.values(), Cost()).figures(time.perf_counter() - started))

        def on_event(event: Event) -> None:
            if event.cost is not None:
                add(event.index, event.cost)

        begun = len(jobs) - len(waiting)
        for step, (job, cost) in enumerate(run_jobs(search_batch, waiting, config, on_event), begun):
            add(job.index, cost, len(job.tasks))
            run.log(name, {"step": step, "tasks": len(job.tasks), **metrics()})
    spent, signal = sum(costs.values(), stored), value_signal(stored_trees(run.trees, name))
    alarms = list[str]()
    if spent.failed:
        broken = next(tree for tree in stored_trees(run.trees, name) if tree.error)
        why = visible(f"{broken.task.id}: {broken.error}")
        alarms.append(f"{name}: {spent.failed} of {spent.trees} searches broke off, first that of {why}")
    if spent.failed_requests:
        alarms.append(
            f"{name}: {spent.failed_requests} requests to the policy's server failed: their branches have no value"
        )
    for alarm in alarms:
        progress.warn(alarm)
    if figures := signal_figures(signal):
        run.log(name, {"step": jobs[-1].index, **figures})  # joins the last batch's line
    facts = {"tasks": len(tasks), "batches": len(jobs), "value_signal": [asdict(row) for row in signal]}
    facts |= {"alarms": alarms} if alarms else {}
    run.finish(name, facts | metrics())


def batches(config: RunConfig, run: Run, tasks: Sequence[int]) -> list[Sequence[int]]:
    """Split tasks into batches of at most ``collect.batch`` tasks, equally many for each worker."""
    size = config.batch(len(tasks), run.first_workers)
    return [tasks[start : start + size] for start in range(0, len(tasks), size)]


def search_batch(job: SearchJob, emit: Emit) -> Cost:
    """Grow one tree for each task and store the trees as one shard. Returns the cost, which is also emitted about once
    a second. Of trees that grow in a world model, the best paths are replayed in the environment (``verify_all``)."""
    config = job.config
    env = build.environment(config)
    actors, policy = build.load_actors(job.checkpoint, config)
    real = build.env_dynamics(build.instances(config), config, job.name)
    tasks = build.tasks_at(env, "train", job.tasks)
    seeds = [derive_seed(config.seed, job.name, task.id) for task in tasks]
    measure, last_report = meter(policy.generator.usage, real), time.monotonic()
    place = Place(config, env, (job.trees or Path("trees")).parent, job.name)
    reward = make_reward(place) if config.rewards.function else None

    def rewarded(played: Dynamics) -> Dynamics:
        dynamics = played if reward is None else RewardedDynamics(played, reward)
        return build.with_split_steps(dynamics, config, policy.grammar)

    def on_batch(trees: Sequence[Tree]) -> None:
        nonlocal last_report
        if time.monotonic() - last_report >= 1.0:
            last_report = time.monotonic()
            emit(Event(job.name, index=job.index, cost=measure(trees)))

    with world_model(config, job.world, env) if job.world is not None else nullcontext() as model:
        dynamics = rewarded(real if model is None else Imagination(real.reset, model))
        search = make_search(actors.sampling, dynamics, config.search, actors.value)
        trees = asyncio.run(search.run(tasks, seeds, on_batch))
    if job.world is not None:
        asyncio.run(verify_all(trees, rewarded(real), config.world.verify_steps))
    policy.forget()
    if job.trees is not None:
        job.write(job.trees, trees)
    return measure(trees)

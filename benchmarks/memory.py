"""Memory of a long collection: what the command and its workers hold while a run's trees are written to disk.

    .venv/bin/python -m benchmarks.memory
    .venv/bin/python -m benchmarks.memory --scripted    # without a model, much faster

A small policy, warm-started as in the quickstart, searches the shop in worker processes, through the same ``collect``
as every run. With ``--scripted``, random calls replace the policy; the pool, environment, search and store stay the
same. After each finished batch, the resident memory of all processes is read from Linux. Its slope is fitted from the
first tenth of the nodes on, to the means of ten stretches, because neighbouring samples are correlated. Ctrl-C ends the
collection early.
"""

import asyncio
import math
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: each process has one core

import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path

import psutil

from benchmarks.command import Figures, add_rounds, options_digest, parser, record_of
from treeagent.config import RunConfig, load_config
from treeagent.generators.grammar import ReAct
from treeagent.pipeline.build import env_dynamics, environment, tasks_at
from treeagent.pipeline.collect import BatchJob, batches, collect
from treeagent.pipeline.folder import COLLECTED, Run
from treeagent.pipeline.metrics import Emit
from treeagent.pipeline.processes import run_jobs, shared_workers
from treeagent.pipeline.progress import Advance, QuietProgress
from treeagent.pipeline.warm_start import warm_start
from treeagent.search.methods import make_search
from treeagent.search.record import to_record
from treeagent.store import read_as, shard_place, shards, write_shard
from treeagent.types import Estimate, Proposal, State, derive_seed

CONFIG = Path(__file__).parent.parent / "configs" / "debug.toml"
TREES, SIMULATIONS = 32, 256
"""Trees per batch, and simulations per tree: so many that the shop has enough tasks."""
SETTINGS = (
    "policy.scratch={width=32,heads=2,layers=1}",
    "policy.max_new_tokens=16",
    "warm_start.episodes=600",
    "warm_start.training.max_steps=200",
    f"search={{limits={{simulations={SIMULATIONS}}},candidates=16,c_init=10.0,leaves=16,prune_invalid=false}}",
    f"collect.batch={TREES}",
)
"""Cheap nodes: short turns, many of them per forward pass of the model."""
WORDS = ("linen shirt", "lunch box", "durable box", "washable", "small", "theft proof", "striped", "canvas")
CALLS = [*(f"search[{word}]" for word in WORDS), *(f"click[{number}]" for number in range(1, 9)), "click[next >]"]
ACTIONS = [ReAct().read(f"Thought: so\nAction: {call}", (7, 8, 9), (-1.0, -0.5, -0.1)) for call in CALLS]
QUESTION = "Does memory grow while trees go to disk?"
PARTS = ("the command", "its workers", "all")
STRETCHES = 10
T_INTERVAL = 2.306
"""97.5 % point of Student's t with ``STRETCHES`` - 2 degrees of freedom."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """Resident memory after some batch, in bytes."""

    batches: int
    """Batches on disk."""
    seconds: float
    command: int
    workers: int
    """Sum over all workers."""


@dataclass
class Watch(QuietProgress):
    """Takes a sample whenever progress reports finished trees."""

    trees: Path
    started: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list[Sample])

    @contextmanager
    def track(self, name: str, total: int) -> Iterator[Advance]:
        def advance(count: int = 1, fields: Mapping[str, str] | None = None) -> None:
            if count:
                self.take()

        yield advance

    def take(self) -> None:
        command = psutil.Process()
        workers = sum(process.memory_info().rss for process in command.children(recursive=True))
        written, seconds = len(shards(self.trees, COLLECTED)), time.monotonic() - self.started
        self.samples.append(Sample(written, seconds, command.memory_info().rss, workers))


@dataclass(frozen=True, slots=True)
class Clicker:
    """Policy and value function that cost nothing."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [Proposal((), tuple(random.Random(seed).choices(ACTIONS, k=count))) for seed in seeds]

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        return [Estimate(len(state.messages[-1].content) % 7 / 7) for state in states]


def click(job: BatchJob, emit: Emit) -> int:
    """As ``search_batch``, but with ``Clicker`` as policy and value function."""
    assert job.trees is not None
    env = environment(job.config)
    search = make_search(Clicker(), env_dynamics(env, job.config, job.name), job.config.search, Clicker())
    tasks = tasks_at(env, job.split, job.tasks)
    trees = asyncio.run(search.run(tasks, [derive_seed(task.id) for task in tasks]))
    write_shard(job.trees, job.name, job.index, map(to_record, trees))
    return len(trees)


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth of memory, in bytes per node."""

    mean: float
    margin: float
    """Half of the 95 % interval."""


def slope(nodes: Sequence[int], memory: Sequence[int]) -> Slope:
    """Slope of the least-squares line through the means of ``STRETCHES`` stretches of samples."""
    cuts = [len(nodes) * part // STRETCHES for part in range(STRETCHES + 1)]
    x, y = ([statistics.fmean(values[start:stop]) for start, stop in pairwise(cuts)] for values in (nodes, memory))
    line = statistics.linear_regression(x, y)
    off = sum((line.intercept + line.slope * at - found) ** 2 for at, found in zip(x, y, strict=True))
    spread = sum((at - statistics.fmean(x)) ** 2 for at in x)
    return Slope(line.slope, T_INTERVAL * (off / (STRETCHES - 2) / spread) ** 0.5)


def nodes_on_disk(trees: Path) -> list[int]:
    """Nodes on disk after no batch, one batch, two batches and so on, in the order in which the batches finished."""
    finished = sorted(shards(trees, COLLECTED), key=lambda path: path.stat().st_mtime_ns)
    batches = (shard_place(path)[1] for path in finished)
    counts = (sum(read_as(lambda record: len(record["nodes"]), trees, COLLECTED, batch)) for batch in batches)
    return list(accumulate(counts, initial=0))


def main() -> None:
    options = parser(__doc__, "memory", seeds=())
    options.add_argument("--nodes", type=int, default=1_000_000, help="about so many are collected")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--scripted", action="store_true", help="random calls in place of a model's")
    arguments = options.parse_args()
    tasks = TREES * math.ceil(arguments.nodes / TREES / SIMULATIONS)
    config = load_config(CONFIG, [*SETTINGS, f"workers={arguments.workers}", f"collect.tasks={tasks}"])
    with record_of(arguments, QUESTION) as record:
        add_rounds(record, 1, options_digest(arguments), PARTS, lambda _: collected(config, arguments.scripted))


def collected(config: RunConfig, scripted: bool) -> Figures:
    """Make a collection. Returns the slopes of memory from the first tenth of the nodes on, with half of their 95 %
    interval."""
    with tempfile.TemporaryDirectory() as name, Run.create(Path(name) / "run", config, resume=False) as run:
        watch = Watch(run.trees)
        checkpoint = Path() if scripted else warm_start(config, run, QuietProgress())
        with shared_workers(config), suppress(KeyboardInterrupt):  # what was measured until then is still reported
            if scripted:
                jobs = batches(config, run, checkpoint, COLLECTED, range(config.collect.tasks))
                for _ in run_jobs(click, jobs, config):
                    watch.take()
            else:
                collect(config, run, watch, checkpoint)
        nodes, samples = nodes_on_disk(run.trees), watch.samples
    settled = [at for at in samples if nodes[at.batches] >= nodes[-1] / 10]
    at = [nodes[sample.batches] for sample in settled]
    memory = {
        "the command": [sample.command for sample in settled],
        "its workers": [sample.workers for sample in settled],
        "all": [sample.command + sample.workers for sample in settled],
    }
    found: dict[str, dict[str, float]] = {}
    for part in PARTS:
        line = slope(at, memory[part])
        found[part] = {
            "bytes a node": line.mean,
            "half of its interval": line.margin,
            "MiB after a tenth": memory[part][0] / MIB,
            "MiB at the end": memory[part][-1] / MIB,
            "nodes": nodes[-1],
        }
    return found


if __name__ == "__main__":
    main()

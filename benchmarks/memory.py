"""Memory of a long collection: what the command and its workers hold while a run's trees go to disk.

    .venv/bin/python benchmarks/memory.py

A small policy, warm-started as in the quickstart, searches the shop through the same ``collect`` as every run, workers
in processes of their own. After each finished wave Linux is asked for the resident memory of all of them. From the
first tenth of the nodes on a slope is fitted to the means of ten stretches, for neighbouring samples tell nearly the
same.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: a process a core

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path

import psutil
from matplotlib.figure import Figure

from treeagent.config import load_config
from treeagent.loop import collect, warm_start
from treeagent.pool import kept_workers
from treeagent.progress import Advance, QuietProgress
from treeagent.run import COLLECTED, Run
from treeagent.store import read_as, shards

CONFIG = Path(__file__).parent.parent / "configs" / "debug.toml"
SETTINGS = (
    "policy.scratch={width=32,heads=2,layers=1,vocabulary=512}",
    "policy.max_new_tokens=16",
    "warm_start.episodes=600",
    "warm_start.sft.max_steps=200",
    "search={limits={simulations=128},candidates=16,c_init=10.0,leaves=16,prune_invalid=false}",
    "collect.wave=64",
)
"""Cheap nodes: short turns, many of them for each pass of the model."""
STRETCHES = 10
T_INTERVAL = 2.306
"""97.5 % point of Student's t with ``STRETCHES`` - 2 degrees of freedom."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """Resident memory after some wave, in bytes."""

    waves: int
    """On disk."""
    seconds: float
    command: int
    workers: int
    """All of them together."""


@dataclass
class Watch(QuietProgress):
    """Takes a sample whenever trees are told to be finished."""

    trees: Path
    started: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list[Sample])

    @contextmanager
    def track(self, name: str, total: int) -> Iterator[Advance]:
        def advance(count: int = 1, fields: Mapping[str, str] | None = None) -> None:
            if count:
                self.samples.append(self._sample())

        yield advance

    def _sample(self) -> Sample:
        command = psutil.Process()
        workers = sum(process.memory_info().rss for process in command.children(recursive=True))
        written = len(shards(self.trees, COLLECTED))
        return Sample(written, time.monotonic() - self.started, command.memory_info().rss, workers)


@dataclass(frozen=True, slots=True)
class Slope:
    """Bytes a node."""

    mean: float
    margin: float
    """Half of the 95 % interval."""


def slope(nodes: Sequence[int], memory: Sequence[int]) -> Slope:
    """Of the least-squares line through the means of ``STRETCHES`` stretches of samples."""
    cuts = [len(nodes) * part // STRETCHES for part in range(STRETCHES + 1)]
    x, y = ([statistics.fmean(values[start:stop]) for start, stop in pairwise(cuts)] for values in (nodes, memory))
    line = statistics.linear_regression(x, y)
    off = sum((line.intercept + line.slope * at - found) ** 2 for at, found in zip(x, y, strict=True))
    spread = sum((at - statistics.fmean(x)) ** 2 for at in x)
    return Slope(line.slope, T_INTERVAL * (off / (STRETCHES - 2) / spread) ** 0.5)


def nodes_on_disk(trees: Path) -> list[int]:
    """After no wave, one, two and so on, in the order in which they were finished."""
    finished = sorted(shards(trees, COLLECTED), key=lambda path: path.stat().st_mtime_ns)
    waves = (int(path.name.removesuffix(".jsonl.zst").rsplit("-", 1)[1]) for path in finished)
    counts = (sum(read_as(lambda record: len(record["nodes"]), trees, COLLECTED, wave)) for wave in waves)
    return list(accumulate(counts, initial=0))


def table(nodes: Sequence[int], samples: Sequence[Sample]) -> str:
    lines = ["| nodes on disk | seconds | command, MiB | workers, MiB |", "|---|---|---|---|"]
    for part in range(STRETCHES + 1):
        place = min(len(samples) * part // STRETCHES, len(samples) - 1)
        at = samples[place]
        lines.append(f"| {nodes[at.waves]:,} | {at.seconds:.0f} | {at.command / MIB:.1f} | {at.workers / MIB:.1f} |")
    return "\n".join(lines)


def plot(path: Path, nodes: Sequence[int], samples: Sequence[Sample]) -> None:
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for name, memory in (("command", [at.command for at in samples]), ("workers", [at.workers for at in samples])):
        axes.plot([nodes[at.waves] for at in samples], [each / MIB for each in memory], label=name, linewidth=1)
    axes.set_xlabel("nodes on disk")
    axes.set_ylabel("resident memory, MiB")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000_000, help="at least so many are collected")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--plot", type=Path, help="a file for the curves, such as memory.svg")
    arguments = parser.parse_args()
    limits = f"collect.limits={{environment_steps={arguments.nodes}}}"  # a node each, beside the roots
    tasks = f"collect.tasks={arguments.nodes // 4}"  # more than the limit will let be searched
    config = load_config(CONFIG, [*SETTINGS, f"workers={arguments.workers}", limits, tasks])
    with tempfile.TemporaryDirectory() as name, Run.create(Path(name) / "run", config, resume=False) as run:
        checkpoint = warm_start(config, run, QuietProgress())
        watch = Watch(run.trees)
        with kept_workers(config), suppress(KeyboardInterrupt):  # Ctrl-C: what has been measured is told
            collect(config, run, watch, checkpoint)
        nodes, samples = nodes_on_disk(run.trees), watch.samples
    settled = [at for at in samples if nodes[at.waves] >= nodes[-1] / 10]
    seconds = samples[-1].seconds
    print(f"{nodes[-1]:,} nodes in {len(nodes) - 1} waves, {arguments.workers} workers, {seconds:.0f} s\n")
    print(table(nodes, samples))
    print(f"\nAfter the first tenth ({len(settled)} samples), bytes a node with their 95 % interval:")
    at = [nodes[sample.waves] for sample in settled]
    for part, memory in (
        ("command", [sample.command for sample in settled]),
        ("workers", [sample.workers for sample in settled]),
        ("all", [sample.command + sample.workers for sample in settled]),
    ):
        found = slope(at, memory)
        print(f"{part}: {found.mean:+.1f} ± {found.margin:.1f}")
    if arguments.plot is not None:
        plot(arguments.plot, nodes, samples)


if __name__ == "__main__":
    main()

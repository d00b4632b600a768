"""What Ray costs: the same trees on both engines with two workers each, measured in one run.

    .venv/bin/pip install --editable ".[ray]"
    .venv/bin/python benchmarks/engines.py

A small policy searches the shop. Workers of both engines are started once; rounds alternate between the engines, and
the trees of every round must be the same. Read the ratio: seconds are this machine's.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from treeagent.config import load_config
from treeagent.run.folder import COLLECTED, Run
from treeagent.run.progress import QuietProgress
from treeagent.stages.search import BatchJob, search_batch
from treeagent.stages.warm_start import warm_start
from treeagent.store import digest, read_records
from treeagent.workers.processes import Processes
from treeagent.workers.ray import RayWorkers

CONFIG = Path(__file__).parent.parent / "configs" / "debug.toml"
WORKERS = 2
SETTINGS = ["engine=ray", f"workers={WORKERS}", "warm_start.episodes=300", "warm_start.training.max_steps=60"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8, help="trees of a job")
    parsed = parser.parse_args()
    # As a local worker's: by itself Ray gives its workers the lowest priority.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    config = load_config(CONFIG, SETTINGS)
    with tempfile.TemporaryDirectory() as name, Run.create(Path(name) / "run", config, resume=False) as run:
        checkpoint = warm_start(config, run, QuietProgress())
        engines: dict[str, Processes | RayWorkers] = {"local": Processes(WORKERS), "ray": RayWorkers(WORKERS, config)}
        seconds: dict[str, list[float]] = defaultdict(list)
        digests: set[str] = set()
        for number in range(1 + parsed.rounds):  # the first one loads the policy
            for engine, workers in engines.items():
                trees = Path(name) / f"{engine}-{number}"
                trees.mkdir()
                starts = range(0, parsed.tasks, parsed.batch)
                jobs = [
                    BatchJob(config, checkpoint, COLLECTED, index, range(start, start + parsed.batch), trees)
                    for index, start in enumerate(starts)
                ]
                started = time.perf_counter()
                done = list(workers.run(search_batch, jobs, lambda event: None))
                seconds[engine].append(time.perf_counter() - started)
                assert len(done) == len(jobs)
                digests.add(digest(read_records(trees)))
        for workers in engines.values():
            workers.close()
    assert len(digests) == 1
    local, ray = (statistics.median(seconds[engine][1:]) for engine in ("local", "ray"))
    ratios = sorted(far / near for far, near in zip(seconds["ray"][1:], seconds["local"][1:], strict=True))
    print(f"{parsed.tasks} trees in batches of {parsed.batch}, {WORKERS} workers, {parsed.rounds} rounds; trees equal")
    print(f"local {local:.2f} s, ray {ray:.2f} s: ratio {ray / local:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})")


if __name__ == "__main__":
    main()

"""What Ray costs: the same trees on both engines with two workers each, measured in one run.

    .venv/bin/pip install --editable ".[ray]"
    .venv/bin/python -m benchmarks.engines

A small policy searches the shop. The workers of both engines are started once, and rounds alternate between the
engines. Every round must grow the same trees. Read the ratio: the seconds hold for this machine only.
"""

import os
import tempfile
import time
from pathlib import Path

from benchmarks.command import Figures, add_rounds, options_digest, record_of, repeating
from treeagent.config import load_config
from treeagent.contrib.scale.ray import RayWorkers
from treeagent.pipeline.collect import BatchJob, search_batch
from treeagent.pipeline.folder import COLLECTED, Run
from treeagent.pipeline.processes import Processes
from treeagent.pipeline.progress import QuietProgress
from treeagent.pipeline.warm_start import warm_start
from treeagent.store import digest, read_as

CONFIG = Path(__file__).parent.parent / "configs" / "debug.toml"
QUESTION = "What does Ray cost, against the local engine with as many workers?"
WORKERS = 2
SETTINGS = ["engine=ray", f"workers={WORKERS}", "warm_start.episodes=300", "warm_start.training.max_steps=60"]


def main() -> None:
    options = repeating(__doc__, "engines", rounds=5)
    options.add_argument("--tasks", type=int, default=64)
    options.add_argument("--batch", type=int, default=8, help="trees of a job")
    arguments = options.parse_args()
    # The priority of a local worker; by default Ray gives its workers the lowest.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    config = load_config(CONFIG, SETTINGS)
    arm = f"{arguments.tasks} trees in batches of {arguments.batch}, {WORKERS} workers"
    with (
        record_of(arguments, QUESTION) as record,
        tempfile.TemporaryDirectory() as name,
        Run.create(Path(name) / "run", config, resume=False) as run,
    ):
        checkpoint = warm_start(config, run, QuietProgress())
        engines: dict[str, Processes | RayWorkers] = {"local": Processes(WORKERS), "ray": RayWorkers(WORKERS, config)}
        digests: set[str] = set()

        def seconds(engine: str, number: int) -> float:
            trees = Path(name) / f"{engine}-{number}"
            trees.mkdir()
            starts = range(0, arguments.tasks, arguments.batch)
            jobs = [
                BatchJob(config, checkpoint, COLLECTED, index, range(start, start + arguments.batch), trees)
                for index, start in enumerate(starts)
            ]
            started = time.perf_counter()
            done = list(engines[engine].run(search_batch, jobs, lambda event: None))
            took = time.perf_counter() - started
            assert len(done) == len(jobs)
            digests.add(digest(read_as(dict, trees)))
            return took

        def measure(number: int) -> Figures:
            local, ray = seconds("local", number), seconds("ray", number)
            return {arm: {"local, s": local, "Ray, s": ray, "ratio": ray / local, "different trees": len(digests) - 1}}

        for engine in engines:
            seconds(engine, -1)  # warm-up: loads the policy
        add_rounds(record, arguments.rounds, options_digest(arguments), [arm], measure)
        for workers in engines.values():
            workers.close()


if __name__ == "__main__":
    main()

"""Rounds that begin with easy tasks, against rounds on all kinds of tasks, under the same limits.

    .venv/bin/python -m benchmarks.curriculum --seeds 0 1 2

All arms of a seed start from the same policy, which has only seen demonstrations of the first stage's tasks. After each
round the policy plays test tasks of all kinds greedily. A row shows the round that was best on validation tasks of all
kinds. Rows already recorded are kept, and unfinished runs are resumed.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.command import limits_of, parser, record_of
from benchmarks.learning import CONFIGS, Learnt, arguments_of, record_runs, settings_digest, train
from treeagent.config import load_config
from treeagent.pipeline.folder import Run
from treeagent.pipeline.progress import QuietProgress
from treeagent.pipeline.warm_start import warm_start

QUESTION = "Does a curriculum learn more than rounds on all kinds of tasks, under the same limits?"
CONFIG = CONFIGS / "curriculum.toml"
ARMS: Mapping[str, tuple[str, ...]] = {
    "curriculum": (),
    "all kinds of tasks": ("adapt.stages=[]",),
}


def started(seed: int, out: Path) -> Path:
    """The policy that the arms of a seed start from."""
    config = load_config(CONFIG, arguments_of(CONFIG, seed, ()))
    with Run.create(out / "start" / f"seed{seed}", config, resume=True) as run:
        return warm_start(config, run, QuietProgress())


def main() -> None:
    options = parser(__doc__, "curriculum")
    options.add_argument("--out", type=Path, default=Path("runs/curriculum"), help="folder of the runs")
    options.add_argument("--processes", type=int, default=2, help="runs side by side, a core each")
    arguments = options.parse_args()
    starts = {seed: started(seed, arguments.out) for seed in arguments.seeds}
    limits = limits_of(load_config(CONFIG))
    with record_of(arguments, QUESTION, **limits) as record, ThreadPoolExecutor(arguments.processes) as pool:

        def learnt(arm: str, seed: int) -> Learnt:
            return train(CONFIG, seed, starts[seed], arguments.out / arm.replace(" ", "-") / f"seed{seed}", ARMS[arm])

        waiting = {
            pool.submit(learnt, arm, seed): (arm, seed)
            for arm, overrides in ARMS.items()
            for seed, start in starts.items()
            if not record.has(arm, seed, settings_digest(CONFIG, overrides, start))
        }
        record_runs(record, waiting, starts)


if __name__ == "__main__":
    main()

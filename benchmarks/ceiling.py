"""How far perfect supervision takes a policy in the quickstart's store: imitation of a demonstrator without errors.

    .venv/bin/python -m benchmarks.ceiling --seeds 0 1 2

The policy of a recipe imitates demonstrations with errors, and then learns from trees. Here it imitates as many
demonstrations of the same tasks without errors, of any length, and plays the same test tasks greedily. "larger" has
about eight times as many weights in its layers. Rows already recorded are kept, and unfinished runs are resumed.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: each process has one core

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from benchmarks.command import own_tasks, parser, record_of, settings_of
from benchmarks.record import Row, digest
from treeagent.config import RunConfig, load_config
from treeagent.run.folder import Run
from treeagent.run.progress import QuietProgress
from treeagent.run.recipes import find_recipe
from treeagent.stages.evaluate import evaluate
from treeagent.stages.warm_start import warm_start

QUESTION = "How much does a policy of the store's size learn from a demonstrator without errors?"
ARMS: Mapping[str, Sequence[str]] = {
    "imitation": (),
    "imitation, larger": ("policy.scratch.layers=4", "policy.scratch.width=256", "policy.scratch.heads=4"),
}


def config_of(arm: str, seed: int) -> RunConfig:
    """The settings of a run, which plays its seed's own test tasks greedily."""
    chosen = ["warm_start.noise=0.0", "warm_start.max_tokens=500", 'evaluate.modes=["greedy"]', "workers=1", *ARMS[arm]]
    recipe = find_recipe("quickstart")
    return load_config(recipe, [*chosen, own_tasks(seed, load_config(recipe).evaluate.tasks)], seed=seed)


def run(arm: str, seed: int, out: Path) -> Row:
    """Make or finish a run. Returns its row."""
    config, progress = config_of(arm, seed), QuietProgress()
    with Run.create(out / arm.replace(" ", "_") / f"seed{seed}", config, resume=True) as begun:
        checkpoint = warm_start(config, begun, progress)
        assert begun.facts("warm_start")["left_out"] == 0, "raise warm_start.max_tokens"
        [row] = evaluate(config, begun, progress, [(checkpoint, "greedy")])
        [accuracy] = [each["mean_token_accuracy"] for each in begun.metrics() if each["stage"] == "warm_start"][-1:]
    return Row(
        arm,
        seed,
        digest(settings_of(config)),
        first_task=config.evaluate.first_task,
        solved=row["solved"],
        environment_steps=row["environment_steps"],
        generated_tokens=row["generated_tokens"],
        figures={"token accuracy in training": accuracy},
    )


def main() -> None:
    options = parser(__doc__, "ceiling")
    options.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    options.add_argument("--out", type=Path, default=Path("runs/ceiling"), help="folder of the runs")
    options.add_argument("--processes", type=int, default=2, help="runs side by side, a core each")
    arguments = options.parse_args()
    with (
        record_of(arguments, QUESTION) as record,
        ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool,
    ):
        waiting = [
            pool.submit(run, arm, seed, arguments.out)
            for arm in arguments.arms
            for seed in arguments.seeds
            if not record.has(arm, seed, digest(settings_of(config_of(arm, seed))))
        ]
        for done in as_completed(waiting):
            row = done.result()
            record.add(row)
            print(f"seed {row.seed} {row.arm}: {100 * row.success:.1f} %", flush=True)


if __name__ == "__main__":
    main()

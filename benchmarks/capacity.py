"""What limits the quickstart's policy after it has learned: short demonstrations, its size, or the number of tasks?

    .venv/bin/python -m benchmarks.capacity --seeds 0 1

Each arm changes one thing in the recipe: "short demonstrations" leaves out those of more than 200 tokens, and "larger"
has about four times as many weights in its layers. An arm trains a policy, searches, updates the policy by RFT, and
evaluates it before and after the update on tasks that no other benchmark plays. The figure "training tasks" is greedy
success in tasks that RFT learned from. If it is about the same as in test tasks, more tasks would not help. Finished
runs are only read; missing or unfinished runs are made or resumed first.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.command import limits_of, parser, record_of
from benchmarks.quickstart import rows_of, run, search_with
from treeagent.config import load_config
from treeagent.run.folder import Run
from treeagent.run.recipes import find_recipe
from treeagent.stages.evaluate import evaluate_batch
from treeagent.stages.search import BatchJob
from treeagent.workers.processes import run_jobs

QUESTION = "What limits the quickstart's policy after it has learned from its trees?"
RECIPE, UPDATE = "quickstart", "rft"
ARMS: Mapping[str, Sequence[str]] = {
    "recipe": (),
    "short demonstrations": ("warm_start.max_tokens=200",),
    "larger": ("policy.scratch.layers=4", "policy.scratch.heads=4", "policy.scratch.width=192"),
}
TRAINING = "training tasks"
FIRST_TASK, TASKS = 1000, 200
"""The test tasks before these are those of other benchmarks."""


def settings(arm: str, seed: int) -> list[str]:
    """The overrides of a run."""
    return [
        f'update.methods=["{UPDATE}"]', "workers=1", f"evaluate.tasks={TASKS}",
        f"evaluate.first_task={FIRST_TASK + seed * TASKS}", *ARMS[arm],
    ]  # fmt: skip


def training_success(folder: Path) -> float:
    """The share of the first tasks that the updated policy learned from which it now solves greedily."""
    finished = Run.open(folder)
    checkpoint = finished.checkpoints / UPDATE
    job = BatchJob(finished.config, checkpoint, "", 0, range(TASKS), None, split="train", mode="greedy")
    [(_, (outcomes, _))] = run_jobs(evaluate_batch, [job], finished.config)
    return statistics.fmean(outcome.success for outcome in outcomes)


def main() -> None:
    options = parser(__doc__, "capacity")
    options.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    options.add_argument("--out", type=Path, default=Path("runs/capacity"), help="folder of the runs")
    arguments = options.parse_args()
    with record_of(arguments, QUESTION, **limits_of(load_config(find_recipe(RECIPE)))) as record:
        for seed in arguments.seeds:
            for arm in arguments.arms:
                folder = arguments.out / arm.replace(" ", "_") / f"seed{seed}"
                run(folder, RECIPE, seed, settings(arm, seed))
                search_with(folder, [UPDATE])
                for row in rows_of(folder, seed):
                    named = replace(row, arm=f"{arm}: {row.arm}")
                    if not record.has(named.arm, seed, named.settings):
                        if row.arm == f"{UPDATE}, greedy":
                            named = replace(named, figures={**row.figures, TRAINING: training_success(folder)})
                        record.add(named)
                        print(f"seed {seed} {named.arm}: {100 * named.success:.1f} %", flush=True)


if __name__ == "__main__":
    main()

"""What limits the quickstart's policy after it has learned: short demonstrations, its size, or the number of tasks?

    .venv/bin/python -m benchmarks.capacity --seeds 0 1

Each arm changes one thing in the recipe: "short demonstrations" leaves out those of more than 200 tokens, and "larger"
has about four times as many weights in its layers. An arm trains a policy, searches, updates the policy by RFT, and
evaluates it before and after the update on tasks that no other benchmark plays. The figure "training tasks" is greedy
success in tasks that RFT learned from. If it is about the same as in test tasks, more tasks would not help. "misread,
failed" and "misread, solved" are the shares of these episodes with a thought that contradicts the page. Finished runs
are only read; missing or unfinished runs are made or resumed first.
"""

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.command import limits_of, parser, record_of
from benchmarks.quickstart import rows_of, run, search_with
from benchmarks.record import Row
from treeagent.config import load_config
from treeagent.envs import Env
from treeagent.run.folder import Run
from treeagent.run.recipes import find_recipe
from treeagent.search.node import Tree
from treeagent.search.record import from_record
from treeagent.stages.build import environment
from treeagent.stages.evaluate import evaluate_batch
from treeagent.stages.search import BatchJob
from treeagent.store import read_as
from treeagent.workers.processes import run_jobs

QUESTION = "What limits the quickstart's policy after it has learned from its trees?"
RECIPE, UPDATE = "quickstart", "rft"
ARMS: Mapping[str, Sequence[str]] = {
    "recipe": (),
    "short demonstrations": ("warm_start.max_tokens=200",),
    "larger": ("policy.scratch.layers=4", "policy.scratch.heads=4", "policy.scratch.width=192"),
}
TRAINING, FAILED, SOLVED = "training tasks", "misread, failed", "misread, solved"
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


def contradicts(env: Env, episode: Tree) -> bool:
    """Whether a thought in an episode contradicts what the policy has read: in the same state the demonstrator, whose
    thoughts are always correct, thinks something else."""
    demonstrator = env.demonstrator(noise=0.0)
    assert demonstrator is not None
    env.reset(options={"task": episode.task})
    for action in (node.edges[0].action for _, node in episode.walk() if node.edges):
        if action.thought != demonstrator.act(random.Random(0))[0]:
            return True
        env.step(action.call)
    return False


def misread(folder: Path, row: Row) -> dict[str, float]:
    """Of the searched policy's failed and of its solved episodes, the shares with a thought that contradicts the
    page."""
    finished = Run.open(folder)
    env, shares = environment(finished.config), dict[str, list[bool]]()
    for episode in read_as(from_record, finished.episodes, f"evaluate-{UPDATE}-mcts"):
        assert episode.place is not None
        solved = row.solved[episode.place - row.first_task] == "1"
        shares.setdefault(SOLVED if solved else FAILED, []).append(contradicts(env, episode))
    return {name: statistics.fmean(each) for name, each in shares.items()}


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
                        if row.arm == f"{UPDATE}, mcts":
                            named = replace(named, figures={**row.figures, **misread(folder, row)})
                        record.add(named)
                        print(f"seed {seed} {named.arm}: {100 * named.success:.1f} %", flush=True)


if __name__ == "__main__":
    main()

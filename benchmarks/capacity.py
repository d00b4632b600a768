"""What limits the quickstart's policy after it has learned: its trees and size, or its reading?

    .venv/bin/python -m benchmarks.capacity --seeds 1 2 3

"recipe" is the quickstart. "larger, more trees" has 4.5 times as many weights in its layers and searches three times as
many tasks, and its update takes three times as many steps. An arm trains a policy, searches, updates the policy by RFT,
and evaluates it before and after the update, on test tasks that the quickstart's seeds do not play. The store has
enough of them for seeds 0 to 3. The recipe's limit for the length of demonstrations was chosen with seeds 0 and 1.

"training tasks" is greedy success in training tasks after the update. "misread, failed" and "misread, solved" are the
shares of these episodes with a thought that differs from the demonstrator's in the same state. Rows already recorded
are kept, and unfinished runs are resumed.
"""

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.command import limits_of, parser, record_of, settings_of
from benchmarks.quickstart import rows_of, run, search_with
from benchmarks.record import Row, digest
from treeagent.config import load_config
from treeagent.envs import Env
from treeagent.pipeline.build import environment
from treeagent.pipeline.evaluate import EvaluationJob, evaluate_batch
from treeagent.pipeline.folder import Run
from treeagent.pipeline.processes import run_jobs
from treeagent.pipeline.recipes import find_recipe
from treeagent.search.node import Tree
from treeagent.search.record import from_record
from treeagent.store import read_as

QUESTION = "What limits the quickstart's policy after it has learned from its trees?"
RECIPE, UPDATE = "quickstart", "rft"
LARGER = ("policy.scratch.layers=4", "policy.scratch.heads=4", "policy.scratch.width=192")
MORE_TREES = ("collect.tasks=1800", "update.rft.max_steps=900", "update.rft.validate_every=100")
ARMS: Mapping[str, Sequence[str]] = {"recipe": (), "larger, more trees": (*LARGER, *MORE_TREES)}
TRAINING, FAILED, SOLVED = "training tasks", "misread, failed", "misread, solved"
FIRST_TASK, TASKS = 1000, 200
"""The test tasks before these are those of the quickstart's seeds 0 to 4."""


def settings(arm: str, seed: int) -> list[str]:
    """The overrides of a run, on one core."""
    return [
        f'update.methods=["{UPDATE}"]', "workers=1", "threads=1", f"evaluate.tasks={TASKS}",
        f"evaluate.first_task={FIRST_TASK + seed * TASKS}", *ARMS[arm],
    ]  # fmt: skip


def training_success(folder: Path) -> float:
    """The share of the first training tasks that the updated policy solves greedily."""
    finished = Run.open(folder)
    checkpoint = finished.checkpoints / UPDATE
    job = EvaluationJob(finished.config, checkpoint, "", 0, range(TASKS), None, "greedy", split="train")
    [(_, (outcomes, _))] = run_jobs(evaluate_batch, [job], finished.config)
    return statistics.fmean(outcome.success for outcome in outcomes)


def misreads(env: Env, episode: Tree) -> bool:
    """Whether the thought of a well-formed turn in an episode differs from what the demonstrator, whose thoughts are
    always correct, thinks in the same state."""
    demonstrator = env.demonstrator(noise=0.0)
    assert demonstrator is not None
    env.reset(options={"task": episode.task})
    for action in (node.edges[0].action for _, node in episode.walk() if node.edges):
        if not action.error and action.thought != demonstrator.act(random.Random(0))[0]:
            return True
        env.step(action.call)
    return False


def misread_shares(folder: Path, row: Row) -> dict[str, float]:
    """The shares of the searched policy's failed and of its solved episodes in which it misreads."""
    finished = Run.open(folder)
    env, shares = environment(finished.config), dict[str, list[bool]]()
    for episode in read_as(from_record, finished.episodes, f"evaluate-{UPDATE}-mcts"):
        assert episode.place is not None
        solved = row.solved[episode.place - row.first_task] == "1"
        shares.setdefault(SOLVED if solved else FAILED, []).append(misreads(env, episode))
    return {name: statistics.fmean(each) for name, each in shares.items()}


def main() -> None:
    options = parser(__doc__, "capacity")
    options.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    options.add_argument("--out", type=Path, default=Path("runs/capacity"), help="folder of the runs")
    arguments = options.parse_args()
    with record_of(arguments, QUESTION, **limits_of(load_config(find_recipe(RECIPE)))) as record:
        for seed in arguments.seeds:
            for arm in arguments.arms:
                wanted = digest(settings_of(load_config(find_recipe(RECIPE), settings(arm, seed))))
                if record.has(f"{arm}: {UPDATE}, mcts", seed, wanted):
                    continue
                folder = arguments.out / arm.replace(",", "").replace(" ", "_") / f"seed{seed}"
                run(folder, RECIPE, seed, settings(arm, seed))
                search_with(folder, [UPDATE])
                for row in rows_of(folder, seed):
                    named = replace(row, arm=f"{arm}: {row.arm}")
                    if not record.has(named.arm, seed, named.settings):
                        if row.arm == f"{UPDATE}, greedy":
                            named = replace(named, figures={**row.figures, TRAINING: training_success(folder)})
                        if row.arm == f"{UPDATE}, mcts":
                            named = replace(named, figures={**row.figures, **misread_shares(folder, row)})
                        record.add(named)
                        print(f"seed {seed} {named.arm}: {100 * named.success:.1f} %", flush=True)


if __name__ == "__main__":
    main()

"""Search methods compared at equal generated tokens, on held-out tasks and without rewards.

    .venv/bin/python -m benchmarks.quickstart --seeds 0 1 2  # trains the policies
    .venv/bin/python -m benchmarks.methods --seeds 0 1 2

Every method plans under the same limit of generated tokens per task and chooses its plan by the settings of the recipe.
The plan is then executed and verified.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.command import record_of, settings_of, start_of, starting
from benchmarks.record import Row, digest, outcome_row
from treeagent.config import Mode, RunConfig
from treeagent.pipeline.evaluate import EvaluationJob, evaluate_batch
from treeagent.pipeline.folder import Run
from treeagent.pipeline.outcomes import Outcome
from treeagent.pipeline.processes import run_jobs
from treeagent.search.config import Limits, SearchConfig
from treeagent.types import Split

QUESTION = "Which search solves most held-out tasks at equal generated tokens?"
_MANY = 100_000
"""Far more than the token limit allows, so that tokens alone limit the chains and the steps of a beam."""


def methods(search: SearchConfig, tokens: int) -> dict[str, tuple[Mode, SearchConfig]]:
    """Evaluation mode and search settings of each method, by name. "mcts" is tree search as the recipe sets it."""
    limited = replace(search, limits=Limits(generated_tokens=tokens))
    return {
        "greedy": ("greedy", limited),
        "best_of_n": ("best_of_n", limited),
        "mcts": ("mcts", limited),
        "mcts, gumbel": ("gumbel", limited),
        "beam": ("beam", limited),
        "best_first": ("best_first", limited),
        "random_expand": ("random_expand", limited),
        "entropy_expand": ("entropy_expand", limited),
        "lookahead": ("lookahead", limited),
        "ab_mcts": ("ab_mcts", limited),
        "rebase": ("rebase", limited),
    }


def main() -> None:
    options = starting(__doc__, "methods")
    options.add_argument("--policy", default="base", help="checkpoint of the runs")
    options.add_argument("--tokens", type=int, default=800, help="generated tokens a task")
    options.add_argument("--tasks", type=int, default=200, help="held-out tasks of each seed")
    options.add_argument("--only", nargs="+", help="names of methods; by default all")
    arguments = options.parse_args()
    with record_of(arguments, QUESTION, generated_tokens=arguments.tokens) as record:
        for seed in arguments.seeds:
            checkpoint = start_of(arguments.runs, seed, arguments.policy)
            config = Run.open(arguments.runs / f"seed{seed}").config
            for name, (mode, search) in methods(config.search, arguments.tokens).items():
                settings = replace(config, search=search, evaluate=replace(config.evaluate, best_of=_MANY))
                settings_hash = digest(
                    settings_of(settings) | {"mode": mode, "policy": arguments.policy, "tasks": arguments.tasks}
                )
                if (arguments.only and name not in arguments.only) or record.has(name, seed, settings_hash):
                    continue
                row = evaluate_arm(settings, checkpoint, mode, name, seed, settings_hash, arguments.tasks)
                record.add(row)
                print(f"seed {seed} {name}: {100 * row.success:.1f} %", flush=True)


def evaluate_arm(
    config: RunConfig,
    checkpoint: Path,
    mode: Mode,
    arm: str,
    seed: int,
    settings: str,
    tasks: int,
    split: Split = "test",
    measure: Callable[[Sequence[Outcome]], Mapping[str, float]] = lambda outcomes: {},
    first: int | None = None,
) -> Row:
    """Play a seed's own ``tasks`` tasks of a split, in batches of fifty. Returns the row of the arm.

    Args:
        settings: digest of the settings.
        first: number of the first task, if it is not ``seed * tasks``.
        measure: computes the row's figures from the outcomes.
    """
    start = seed * tasks if first is None else first
    tasks_played = range(start, start + tasks)
    jobs = [
        EvaluationJob(config, checkpoint, arm, index, tasks_played[at : at + 50], None, mode, split=split)
        for index, at in enumerate(range(0, tasks, 50))
    ]
    done = {job.index: part for job, part in run_jobs(evaluate_batch, jobs, config)}
    outcomes = [outcome for index in sorted(done) for outcome in done[index][0]]
    seconds = sum(seconds for _, seconds in done.values())
    row = outcome_row(arm, seed, settings, tasks_played.start, outcomes, **measure(outcomes))
    return replace(row, seconds=seconds)


if __name__ == "__main__":
    main()

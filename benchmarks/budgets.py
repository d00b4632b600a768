"""Success at several budgets of generated tokens, for a policy before and after it learnt from its trees.

    .venv/bin/python -m benchmarks.quickstart --seeds 0 1 2  # trains the policies
    .venv/bin/python -m benchmarks.budgets --seeds 0 1 2

Best-of-N and tree search plan without rewards and have the same token limit per task. The figures of a row tell where
environment steps go.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.command import record_of, settings_of, start_of, starting
from benchmarks.methods import evaluate_arm
from benchmarks.record import digest
from treeagent.config import Mode
from treeagent.pipeline.folder import Run
from treeagent.pipeline.outcomes import Outcome
from treeagent.search.config import Limits

QUESTION = "How does success grow with the tokens that a task may take, before and after learning from trees?"
WAYS: tuple[Mode, ...] = ("best_of_n", "mcts")


def spent(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Means per task: the actions that the policy drew, the environment steps before and during the execution of the
    plan, and the share of the actions that took no step, because they had been drawn before at the same state.

    The recipe's search draws one action per proposal.
    """
    drawn = statistics.fmean(each.budget.proposals for each in outcomes)
    planning = statistics.fmean(each.budget.environment_steps - each.steps for each in outcomes)
    executed = statistics.fmean(each.steps for each in outcomes)
    return {
        "drawn actions": drawn,
        "steps while planning": planning,
        "steps of the plan": executed,
        "drawn again, %": 100 * (1 - planning / drawn),
    }


def main() -> None:
    options = starting(__doc__, "budgets")
    options.add_argument("--policies", nargs="+", default=["base", "rft"], help="checkpoints of the runs")
    options.add_argument("--tokens", type=int, nargs="+", default=[200, 400, 800, 1100], help="limits of a task")
    options.add_argument("--tasks", type=int, default=200, help="held-out tasks of each seed")
    arguments = options.parse_args()
    with record_of(arguments, QUESTION) as record:
        for seed, policy, tokens, way in (
            (seed, policy, tokens, way)
            for seed in arguments.seeds
            for policy in arguments.policies
            for tokens in arguments.tokens
            for way in WAYS
        ):
            checkpoint, config = start_of(arguments.runs, seed, policy), Run.open(arguments.runs / f"seed{seed}").config
            search = replace(config.search, limits=Limits(generated_tokens=tokens))
            settings = replace(config, search=search, evaluate=replace(config.evaluate, best_of=100_000))
            arm, settings_hash = (
                f"{policy}, {way}, {tokens} tokens",
                digest(settings_of(settings) | {"tasks": arguments.tasks}),
            )
            if not record.has(arm, seed, settings_hash):
                row = evaluate_arm(settings, checkpoint, way, arm, seed, settings_hash, arguments.tasks, measure=spent)
                record.add(replace(row, figures={"tokens": tokens, **row.figures}))
                print(f"seed {seed} {arm}: {100 * row.success:.1f} %", flush=True)


if __name__ == "__main__":
    main()

"""Ways of searching compared at equal generated tokens, on held-out tasks and without any reward.

    .venv/bin/python benchmarks/quickstart.py --config store --seeds 0 1 2  # trains the policies
    .venv/bin/python benchmarks/methods.py --seeds 0 1 2

Every method plans under one limit of generated tokens a task, judged by the value head alone; its plan is then executed
and verified. Sequential halving divides a number of simulations, so Gumbel search has that as its limit instead.
"""

import argparse
import statistics
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from treeagent.config import Mode, load_config
from treeagent.run.outcomes import wilson_interval
from treeagent.search.config import SearchConfig, Selection
from treeagent.search.limits import Limits
from treeagent.stages.evaluate import evaluate_batch
from treeagent.stages.search import BatchJob
from treeagent.workers.processes import run_jobs

# Far more than the tokens allow; chains and steps of a beam are counted by them alone.
_MANY = 100_000


def methods(search: SearchConfig, tokens: int) -> dict[str, tuple[Mode, SearchConfig]]:
    """By name, the mode of evaluation and its settings."""
    limited = replace(search, limits=Limits(generated_tokens=tokens))

    def mcts(selection: Selection, limits: Limits) -> tuple[Mode, SearchConfig]:
        # UCT's constant is not PUCT's: Agent Q's formula is used with sqrt(2).
        c_init = 2**0.5 if selection == "uct" else search.c_init
        return "mcts", replace(search, selection=selection, c_init=c_init, limits=limits)

    return {
        "mcts, PUCT": mcts("puct", limited.limits),
        "mcts, UCT": mcts("uct", limited.limits),
        "mcts, Gumbel": mcts("gumbel", search.limits),
        "best_of_n": ("best_of_n", limited),
        "beam": ("beam", limited),
        "best_first": ("best_first", limited),
        "random_expand": ("random_expand", limited),
        "lookahead": ("lookahead", limited),
        "greedy": ("greedy", limited),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/benchmark"), help="where benchmarks/quickstart.py wrote"
    )
    parser.add_argument("--policy", default="base", help="checkpoint of those runs")
    parser.add_argument("--tokens", type=int, default=800, help="generated tokens a task")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--only", nargs="+", help="names of methods; by default all")
    arguments = parser.parse_args()
    solved: dict[str, list[int]] = defaultdict(list)
    tokens: dict[str, list[float]] = defaultdict(list)
    steps: dict[str, list[float]] = defaultdict(list)
    for seed in arguments.seeds:
        run = arguments.runs / f"seed{seed}"
        config = load_config(run / "config.toml")
        for name, (mode, search) in methods(config.search, arguments.tokens).items():
            if arguments.only and name not in arguments.only:
                continue
            settings = replace(config, search=search, evaluate=replace(config.evaluate, best_of=_MANY))
            jobs = [
                BatchJob(
                    settings, run / "checkpoints" / arguments.policy, name, index,
                    range(start, min(start + 50, arguments.tasks)), None, split="test", mode=mode,
                )
                for index, start in enumerate(range(0, arguments.tasks, 50))
            ]  # fmt: skip
            outcomes = [one for _, (part, _) in run_jobs(evaluate_batch, jobs, config) for one in part]
            solved[name].append(sum(outcome.success for outcome in outcomes))
            tokens[name].append(statistics.mean(outcome.budget.generated_tokens for outcome in outcomes))
            steps[name].append(statistics.mean(outcome.budget.environment_steps for outcome in outcomes))
    print("| method | success, pooled | 95 % | by seed | tokens / task | env steps / task |")
    print("|---|---|---|---|---|---|")
    for name, counts in solved.items():
        low, high = wilson_interval(sum(counts), arguments.tasks * len(counts))
        by_seed = " ".join(f"{100 * count / arguments.tasks:.0f}" for count in counts)
        print(
            f"| {name} | {100 * sum(counts) / arguments.tasks / len(counts):.1f} | {100 * low:.0f} to {100 * high:.0f} "
            f"| {by_seed} | {statistics.mean(tokens[name]):.0f} | {statistics.mean(steps[name]):.1f} |"
        )


if __name__ == "__main__":
    main()

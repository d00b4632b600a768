"""Policies that learnt from generated blocks, on problem files that others wrote (PDDLGym, Silver and Chitnis 2020).

    pip install --no-deps pddlgym==0.0.7
    .venv/bin/python -m benchmarks.quickstart --config envs/blocks
    .venv/bin/python -m benchmarks.learning --environment configs/envs/blocks.toml --runs runs/blocks \\
        --name learning_blocks --out runs/learning_blocks --recipes adapt \\
        --set collect.tasks=500 update.rft.max_steps=300 update.rft.validate_every=50 \\
        'search.limits={simulations=200, generated_tokens=800}'
    .venv/bin/python -m benchmarks.problem_files --runs runs/learning_blocks/adapt --policy round-3-rft

All seeds play the same files, because there are few. "generated" is the test split of the policy's own generator.
``plan`` is the mean number of actions of the planner, and ``possible`` the share of problems that it solves within the
limit of an episode.
"""

import statistics
from dataclasses import replace

from benchmarks.command import record_of, settings_of, start_of, starting
from benchmarks.methods import evaluate_arm
from benchmarks.record import digest
from benchmarks.sweep import plan_lengths
from treeagent.config import Mode, Options, RunConfig
from treeagent.pipeline.folder import Run
from treeagent.search.limits import Limits

QUESTION = "Does a policy that learnt from generated problems solve problem files of others, and does search help?"
SOURCES: dict[str, tuple[Options, int]] = {
    "generated": ({}, 60),
    "blocks_operator_actions": ({"pddlgym": "blocks_operator_actions"}, 15),
    "generated_blocks": ({"pddlgym": "generated_blocks"}, 10),
}
"""Options of the environment, and the number of test problems. The last two are domains of PDDLGym with 4 to 7 and 3 to
9 blocks."""
MODES: tuple[Mode, ...] = ("greedy", "best_of_n", "mcts")


def settings(config: RunConfig, options: Options, tokens: int) -> RunConfig:
    given = {**config.environment.options, **options}
    name = "pddl" if options else config.environment.name
    environment = replace(config.environment, name=name, options=given)
    search = replace(config.search, limits=Limits(generated_tokens=tokens))
    return replace(config, environment=environment, search=search, evaluate=replace(config.evaluate, best_of=100_000))


def main() -> None:
    options = starting(__doc__, "problem_files")
    options.add_argument("--policy", default="base", help="checkpoint of the runs")
    options.add_argument("--tokens", type=int, default=800, help="generated tokens a task")
    arguments = options.parse_args()
    with record_of(arguments, QUESTION, generated_tokens=arguments.tokens) as record:
        for seed in arguments.seeds:
            checkpoint = start_of(arguments.runs, seed, arguments.policy)
            config = Run.open(arguments.runs / f"seed{seed}").config
            for source, (source_options, tasks) in SOURCES.items():
                chosen = settings(config, source_options, arguments.tokens)
                first = seed * tasks if source == "generated" else 0
                lengths = plan_lengths(chosen, range(first, first + tasks), "test")
                figures = {
                    "plan": statistics.fmean(lengths),
                    "possible": statistics.fmean(length <= chosen.environment.max_steps for length in lengths),
                }
                for mode in MODES:
                    name = f"{source}, {mode}"
                    more = {"mode": mode, "policy": arguments.policy, "tasks": tasks}
                    settings_hash = digest(settings_of(chosen) | more)
                    if not record.has(name, seed, settings_hash):
                        row = evaluate_arm(chosen, checkpoint, mode, name, seed, settings_hash, tasks, first=first)
                        record.add(replace(row, figures=figures))
                        print(f"seed {seed} {name}: {100 * row.success:.1f} %", flush=True)


if __name__ == "__main__":
    main()

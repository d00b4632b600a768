"""The constants of tree search and of its final decision, compared on validation tasks. No test task is used.

    .venv/bin/python -m benchmarks.quickstart --seeds 0 1 2  # trains the policies
    .venv/bin/python -m benchmarks.constants --seeds 0 1 2

    .venv/bin/python -m benchmarks.sweep --seeds 0 1 2
    .venv/bin/python -m benchmarks.constants --runs runs/sweep --name constants_tireworld --tasks 40

Each arm changes one constant of the recipe. c is the option ``c_init``, the weight of exploration. λ is
``evaluate.likelihood_weight``, the weight of the policy's own probability when the plan is chosen. "2 at a time" draws
two candidates whenever one is due (the option ``widening``), and "6 at first" samples six when a state is expanded and
none later.
"""

from dataclasses import replace

from benchmarks.command import record_of, settings_of, start_of, starting
from benchmarks.methods import evaluate_arm
from benchmarks.record import digest
from treeagent.config import RunConfig
from treeagent.pipeline.folder import Run
from treeagent.search.config import Limits

QUESTION = "Which constants of tree search solve most validation tasks?"
RECIPE = "the recipe"
EXPLORATION = (0.25, 0.5, 1.0, 2.0)
LIKELIHOOD = (0.0, 0.05, 0.1, 0.2, 0.4)
AT_A_TIME = (2, 4)
AT_FIRST = 6


def variants(config: RunConfig) -> dict[str, RunConfig]:
    """The recipe and its variants by name, each with one constant changed."""
    search, evaluate = config.search, config.evaluate
    changed = {
        **{f"c = {c:g}": replace(config, search=replace(search, options={"c_init": c})) for c in EXPLORATION},
        **{f"λ = {w:g}": replace(config, evaluate=replace(evaluate, likelihood_weight=w)) for w in LIKELIHOOD},
        **{f"{k} at a time": replace(config, search=replace(search, options={"widening": k})) for k in AT_A_TIME},
        f"{AT_FIRST} at first": replace(config, search=replace(search, options={"widening": 0}, candidates=AT_FIRST)),
    }
    return {RECIPE: config} | {name: variant for name, variant in changed.items() if variant != config}


def main() -> None:
    options = starting(__doc__, "constants")
    options.add_argument("--policy", default="base", help="checkpoint of the runs")
    options.add_argument("--tokens", type=int, default=800, help="generated tokens a task")
    options.add_argument("--tasks", type=int, default=100, help="validation tasks of each seed")
    arguments = options.parse_args()
    with record_of(arguments, QUESTION, generated_tokens=arguments.tokens) as record:
        for seed in arguments.seeds:
            checkpoint = start_of(arguments.runs, seed, arguments.policy)
            config = Run.open(arguments.runs / f"seed{seed}").config
            limited = replace(config, search=replace(config.search, limits=Limits(generated_tokens=arguments.tokens)))
            for name, settings in variants(limited).items():
                settings_hash = digest(settings_of(settings) | {"policy": arguments.policy, "tasks": arguments.tasks})
                if record.has(name, seed, settings_hash):
                    continue
                row = evaluate_arm(
                    settings, checkpoint, "mcts", name, seed, settings_hash, arguments.tasks, split="validation"
                )
                record.add(row)
                print(f"seed {seed} {name}: {100 * row.success:.1f} %", flush=True)


if __name__ == "__main__":
    main()

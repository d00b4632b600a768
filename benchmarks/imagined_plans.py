"""What planning in a world model adds to a policy, with only the environment steps of the episode itself.

    .venv/bin/python -m benchmarks.quickstart --seeds 0 1  # trains the policies
    make runs/smollm2
    .venv/bin/python -m benchmarks.quickstart --config quickstart_llm --seeds 0 1  # collects the world models' steps
    .venv/bin/python -m benchmarks.worlds --runs runs/quickstart_llm --seeds 0 1 --arms scratch "scratch, sentences"
    .venv/bin/python -m benchmarks.imagined_plans --seeds 0 1

Before each of its steps, a policy searches the world model for a plan and takes the plan's first action (model
predictive control). "words" and "sentences" are world models that find similar steps by words and by a sentence
encoder, and differ in nothing else. "greedy" plans nothing. "environment" searches the environment once, with the limit
that the others have for every step.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.command import record_of, settings_of, start_of, starting
from benchmarks.methods import evaluate_arm
from benchmarks.record import digest
from treeagent.config import Mode, RunConfig, load_config
from treeagent.pipeline.folder import Run
from treeagent.search.limits import Limits

QUESTION = "What does planning in a world model add to a policy, with only the environment steps of the episode itself?"
WORLDS: Mapping[str, str] = {"words": "scratch", "sentences": "scratch-sentences"}
"""The world model of each arm, as in the names of the folders that benchmarks.worlds makes."""
ARMS = ("greedy", *WORLDS, "environment")


def config_of(start: Path, arm: str, seed: int, worlds: Path, tokens: int) -> tuple[RunConfig, Mode]:
    """The settings of an arm and its way to act, for the run of a policy in the folder ``start``. The step limit of the
    environment is that of the world models' runs."""
    steps = load_config(worlds / f"seed{seed}-scratch" / "config.toml").environment.max_steps
    config = load_config(start / "config.toml", [f"environment.max_steps={steps}"])
    search = replace(config.search, limits=Limits(generated_tokens=tokens))
    world = str(worlds / f"seed{seed}-{WORLDS[arm]}") if arm in WORLDS else ""
    evaluation = replace(config.evaluate, world=world)
    return replace(config, search=search, evaluate=evaluation), "greedy" if arm == "greedy" else "mcts"


def settings_digest(config: RunConfig, arm: str, tasks: int) -> str:
    """The digest of an arm's settings, which is the same for all seeds, although each has a world model of its own."""
    evaluation = replace(config.evaluate, world=WORLDS.get(arm, ""))
    return digest(settings_of(replace(config, evaluate=evaluation)) | {"tasks": tasks})


def main() -> None:
    options = starting(__doc__, "imagined_plans")
    options.add_argument("--worlds", type=Path, default=Path("runs/worlds"), help="where benchmarks.worlds wrote")
    options.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    options.add_argument("--tokens", type=int, default=200, help="limit of a search, in sampled tokens")
    options.add_argument("--tasks", type=int, default=200, help="held-out tasks of each seed")
    arguments = options.parse_args()
    with record_of(arguments, QUESTION) as record:
        for seed in arguments.seeds:
            start = Run.open(arguments.runs / f"seed{seed}").path
            for arm in arguments.arms:
                config, mode = config_of(start, arm, seed, arguments.worlds, arguments.tokens)
                settings = settings_digest(config, arm, arguments.tasks)
                if not record.has(arm, seed, settings):
                    checkpoint = start_of(arguments.runs, seed, "base")
                    row = evaluate_arm(config, checkpoint, mode, arm, seed, settings, arguments.tasks)
                    record.add(replace(row, figures={"tokens": arguments.tokens}))
                    steps, spent = row.environment_steps / row.tasks, row.generated_tokens / row.tasks
                    print(f"seed {seed} {arm}: {100 * row.success:.1f} %, {steps:.1f} steps, {spent:.0f} tokens")


if __name__ == "__main__":
    main()

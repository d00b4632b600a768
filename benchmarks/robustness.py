"""How robust policies are: success on the same tasks under each disturbance of the environment, one at a time.

    .venv/bin/python -m benchmarks.quickstart --seeds 0 1 2  # trains the policies
    .venv/bin/python -m benchmarks.robustness --seeds 0 1 2

The arm "plain" has no disturbance.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from benchmarks.command import record_of, settings_of, start_of, starting
from benchmarks.methods import evaluate_arm
from benchmarks.record import digest
from treeagent.config import Mode, Wrapper
from treeagent.contrib.guards.disturbed import Disturbance
from treeagent.pipeline.folder import Run

QUESTION = "How much of a policy's success is left when one thing about the environment is made harder?"
KINDS: Sequence[tuple[str, tuple[Disturbance, ...]]] = (
    ("plain", ()),
    *((kind, (kind,)) for kind in get_args(Disturbance)),
)
PLAYED: Sequence[tuple[str, Mode]] = (("base", "greedy"), ("rft", "greedy"), ("grpo", "greedy"), ("base", "mcts"))


def main() -> None:
    options = starting(__doc__, "robustness")
    options.add_argument("--tasks", type=int, default=100, help="held-out tasks of each seed")
    arguments = options.parse_args()
    with record_of(arguments, QUESTION) as record:
        for seed in arguments.seeds:
            config = Run.open(arguments.runs / f"seed{seed}").config
            for policy, mode in PLAYED:
                for name, kinds in KINDS:
                    added: Wrapper = {"name": "disturbances", "options": {"kinds": kinds}}
                    harder = replace(config.environment, wrappers=(added,) if kinds else ())
                    settings = replace(config, environment=harder)
                    arm, settings_hash = (
                        f"{policy}, {mode}, {name}",
                        digest(settings_of(settings) | {"tasks": arguments.tasks}),
                    )
                    if not record.has(arm, seed, settings_hash):
                        checkpoint = start_of(arguments.runs, seed, policy)
                        row = evaluate_arm(settings, checkpoint, mode, arm, seed, settings_hash, arguments.tasks)
                        record.add(row)
                        print(f"seed {seed} {arm}: {100 * row.success:.1f} %", flush=True)


if __name__ == "__main__":
    main()

"""What constraining turns to their format (``policy.structured``) gains and costs, by how well a policy knows the
format.

    .venv/bin/python -m benchmarks.structured

Policies trained from scratch, with few and many steps of the quickstart's warm start, play held-out tasks of the store.
Turns are sampled, "free" without and "held" with the constraint, on the same tasks and seeds. Seconds are CPU seconds
on one thread.
"""

import asyncio
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from benchmarks.command import own_tasks, parser, record_of, settings_of
from benchmarks.record import Row, digest, outcome_row
from treeagent.config import RunConfig, load_config
from treeagent.pipeline.build import env_dynamics, environment, load_actors, tasks_at
from treeagent.pipeline.folder import Run
from treeagent.pipeline.play import execute
from treeagent.pipeline.progress import QuietProgress
from treeagent.pipeline.warm_start import warm_start
from treeagent.types import Policy, Proposal, State

QUESTION = "Does it help to hold turns to their format while they are sampled?"
CONFIG = Path(__file__).parent.parent / "configs" / "quickstart.toml"


@dataclass
class Counted:
    """A policy that counts the turns, malformed turns and tokens that it samples."""

    policy: Policy
    turns: int = 0
    malformed: int = 0
    tokens: int = 0

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        proposals = await self.policy.propose(states, count, seeds)
        actions = [action for proposal in proposals for action in proposal.actions]
        self.turns += len(actions)
        self.malformed += sum(bool(action.error) for action in actions)
        self.tokens += sum(len(action.token_ids) for action in actions)
        return proposals


def play(config: RunConfig, checkpoint: Path, seed: int, arm: str) -> Row:
    """Play a seed's held-out tasks with sampled turns. Returns the row."""
    env, tasks = environment(config), config.evaluate.places
    counted = Counted(load_actors(checkpoint, config)[0].sampling)
    started = time.process_time()
    playing = execute(
        counted, env_dynamics(env, config, "play"), tasks_at(env, "test", tasks), tasks, [()] * len(tasks)
    )
    outcomes, _ = asyncio.run(playing)
    seconds = time.process_time() - started
    figures = {"malformed": counted.malformed / counted.turns, "tokens / s": counted.tokens / seconds}
    return outcome_row(arm, seed, digest(settings_of(config)), tasks.start, outcomes, **figures)


def main() -> None:
    options = parser(__doc__, "structured")
    options.add_argument("--steps", type=int, nargs="+", default=[25, 50, 100, 400], help="of the warm start")
    options.add_argument("--tasks", type=int, default=200, help="held-out tasks of each seed")
    arguments = options.parse_args()
    with record_of(arguments, QUESTION) as record:
        for seed, steps in product(arguments.seeds, arguments.steps):
            settings = [f"warm_start.training.max_steps={steps}", "workers=1", f"evaluate.tasks={arguments.tasks}"]
            config = load_config(CONFIG, [*settings, own_tasks(seed, arguments.tasks)], seed=seed)
            arms = {
                f"{'held' if structured else 'free'}, {steps} steps": replace(
                    config, policy=replace(config.policy, structured=structured)
                )
                for structured in (False, True)
            }
            if all(record.has(arm, seed, digest(settings_of(held))) for arm, held in arms.items()):
                continue
            with tempfile.TemporaryDirectory() as name, Run.create(Path(name) / "run", config, resume=False) as run:
                checkpoint = warm_start(config, run, QuietProgress())
                for arm, held in arms.items():
                    record.add(play(held, checkpoint, seed, arm))


if __name__ == "__main__":
    main()

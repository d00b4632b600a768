"""What holding turns to their format brings and costs (``policy.structured``), by how well a policy knows the format.

    .venv/bin/python benchmarks/structured.py

Policies from scratch, after few and many steps of the quickstart's warm start, play held-out tasks of the store, turns
sampled, free and held; both see the same tasks and seeds. Seconds are the processor's, on one thread.
"""

import argparse
import asyncio
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from treeagent.config import RunConfig, load_config
from treeagent.run.folder import Run
from treeagent.run.outcomes import wilson_interval
from treeagent.run.progress import QuietProgress
from treeagent.stages.build import environment, load_actors, play_on
from treeagent.stages.play import execute
from treeagent.stages.warm_start import warm_start
from treeagent.types import Policy, Proposal, State

CONFIG = Path(__file__).parent.parent / "configs" / "quickstart.toml"


@dataclass
class Counted:
    """A policy and what it said."""

    policy: Policy
    turns: int = 0
    malformed: int = 0
    tokens: int = 0

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        said = await self.policy.propose(states, count, seeds)
        actions = [action for proposal in said for action in proposal.actions]
        self.turns += len(actions)
        self.malformed += sum(bool(action.error) for action in actions)
        self.tokens += sum(len(action.token_ids) for action in actions)
        return said


def play(config: RunConfig, checkpoint: Path, tasks: int) -> str:
    """Malformed turns, successes and tokens a second, as three cells."""
    env = environment(config)
    counted = Counted(load_actors(checkpoint, config)[0].sampling)
    started = time.process_time()
    played = execute(counted, play_on(env, config, "play"), env.tasks("test", tasks), range(tasks), [()] * tasks)
    outcomes, _ = asyncio.run(played)
    seconds = time.process_time() - started
    successes = sum(outcome.success for outcome in outcomes)
    low, high = wilson_interval(successes, tasks)
    return (
        f"{100 * counted.malformed / counted.turns:.1f} % of {counted.turns} "
        f"| {100 * successes / tasks:.1f} ({100 * low:.0f} to {100 * high:.0f}) | {counted.tokens / seconds:,.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[25, 50, 100, 400], help="of the warm start")
    parser.add_argument("--tasks", type=int, default=400)
    arguments = parser.parse_args()
    print("| steps of the warm start | turns | malformed | success, 95 % | tokens/s |\n|---|---|---|---|---|")
    for steps in arguments.steps:
        config = load_config(CONFIG, [f"warm_start.training.max_steps={steps}", "workers=1"])
        with tempfile.TemporaryDirectory() as name, Run.create(Path(name) / "run", config, resume=False) as run:
            checkpoint = warm_start(config, run, QuietProgress())
            for structured in (False, True):
                held = replace(config, policy=replace(config.policy, structured=structured))
                cells = play(held, checkpoint, arguments.tasks)
                print(f"| {steps} | {'held' if structured else 'free'} | {cells} |", flush=True)


if __name__ == "__main__":
    main()

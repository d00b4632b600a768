"""Agent Q's critic in the booking world: what is its word worth, and what would a better critic's be?

    .venv/bin/python -m benchmarks.quickstart --config quickstart --seeds 0 1 2 3 4
    .venv/bin/python -m benchmarks.critic --runs runs/quickstart --seeds 0 1 2 3 4

Tree search of the base policy at equal generated tokens, where the critic's share in the prior of a candidate is each
of ``--weights`` (Agent Q, Putta et al. 2024, section 5.1.1). The critics: "own", the policy's own model; "value", V of
the state that a candidate leads to, whose look ahead is not counted as a step; and "solver", 1 for what the world's own
solver would do here and 0 for the rest, the most that a critic could know. The verifier's reward is never seen.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from benchmarks.command import record_of, settings_of, start_of, starting
from benchmarks.methods import evaluate_arm
from benchmarks.record import digest
from treeagent.contrib.methods.critic import CriticSearch
from treeagent.contrib.worlds.booking import BookingEnv, BookingOptions
from treeagent.pipeline.folder import Run
from treeagent.search.config import Limits
from treeagent.search.node import Node
from treeagent.search.searcher import Growth
from treeagent.types import State

QUESTION = "How much does a critic of candidates add to tree search, and how much would a perfect one?"
CRITICS = {"own": "critic", "value": "benchmarks.critic:ValueCritic", "solver": "benchmarks.critic:SolverCritic"}


class ValueCritic(CriticSearch):
    """The critic is V of the state that a candidate leads to."""

    async def rank_actions(self, growth: Growth, nodes: Sequence[Node]) -> Sequence[Sequence[float]]:
        if self.value is None:
            raise SystemExit("the policy has no value head")
        ranked = list[list[float]]()
        for node in nodes:
            reached = [(await self.dynamics.step(node.state, edge.action)).state for edge in node.edges]
            answers = await self.models.ask(self.value.estimate, growth.number, reached)
            ranked.append([max(each.value, 0.0) for each in answers])
        return ranked


class SolverCritic(CriticSearch):
    """The critic knows what the site's demonstrator would do without errors."""

    async def rank_actions(self, growth: Growth, nodes: Sequence[Node]) -> Sequence[Sequence[float]]:
        return [
            [float(edge.action.call == right) for edge in node.edges]
            for node in nodes
            for right in (solved(node.state),)
        ]


@cache
def site(size: int) -> BookingEnv:
    return BookingEnv(BookingOptions(size=size))


def solved(state: State) -> str:
    """The command of a user who makes no errors, at a state of the booking site."""
    env = site(int(state.task.id.removeprefix("booking").partition("-")[0]))
    env.reset(options={"task": state.task})
    for message in state.messages:
        if message.role == "assistant" and (found := re.search(r"click\[\d+\]", message.content)):
            env.step(found[0])
    return env.demonstrator(0.0).act(random.Random(0))[1]


def main() -> None:
    options = starting(__doc__, "critic")
    options.add_argument("--policy", default="base", help="checkpoint of the runs")
    options.add_argument("--tasks", type=int, default=50, help="test tasks of each seed")
    options.add_argument("--tokens", type=int, default=1000, help="generated tokens a task")
    options.add_argument("--candidates", type=int, default=4, help="candidates that a critic compares at a state")
    options.add_argument("--weights", type=float, nargs="+", default=[0.25, 0.5, 0.75, 1.0])
    arguments = options.parse_args()
    with record_of(arguments, QUESTION, generated_tokens=arguments.tokens) as record:
        for seed in arguments.seeds:
            checkpoint = start_of(arguments.runs, seed, arguments.policy)
            config = Run.open(arguments.runs / f"seed{seed}").config
            arms = [("one candidate at a time", "mcts", None), ("no critic", "critic", 0.0)]
            arms += [
                (f"{name}, weight {weight:g}", way, weight)
                for name, way in CRITICS.items()
                for weight in arguments.weights
            ]
            for arm, method, weight in arms:
                search = replace(
                    config.search,
                    method=method,
                    options={} if weight is None else {"weight": weight},
                    candidates=arguments.candidates,
                    limits=Limits(generated_tokens=arguments.tokens),
                )
                settings = replace(config, search=search, workers=1)
                known = digest(settings_of(settings) | {"policy": arguments.policy, "tasks": arguments.tasks})
                if not record.has(arm, seed, known):
                    row = evaluate_arm(settings, checkpoint, method, arm, seed, known, arguments.tasks)
                    record.add(row)
                    print(f"seed {seed} {arm}: {100 * row.success:.1f} %", flush=True)


if __name__ == "__main__":
    main()

"""When tree search beats independent samples: a ladder of H decisions. Each has one right action, and no mistake can be
undone.

    .venv/bin/python -m benchmarks.horizon --seeds 0 1 2 3 4

Nothing is learned here, so the horizon, the policy and the value signal are free parameters. At each decision the
policy takes the right action with probability q and each of three wrong ones with probability (1 - q) / 3. V(s) is 0.8
if all actions so far were right, else 0.2, plus Gaussian noise that is drawn once per state; terminal states have less
noise. An action has ten tokens, and every search method has the same number of tokens. Sampling whole episodes needs
about q^-H of them for one success. With thoughts, every sampled text is unique and improbable, so its probability says
nothing about the call in it.
"""

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from benchmarks.command import parser, record_of
from benchmarks.record import Row, digest
from treeagent.config import EvaluateConfig
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.decide import best_path
from treeagent.search.node import Tree
from treeagent.search.searcher import make_search
from treeagent.types import Action, Estimate, Message, Proposal, State, Task, Transition, derive_seed

QUESTION = "From which horizon on does tree search beat independent samples at equal tokens?"
WORDS = "abcd"
TOKENS = 10
"""Tokens per action."""
END_NOISE = 0.1
"""Standard deviation of the noise of V at a terminal state."""
PANELS = ((0.2, False), (0.4, False), (0.2, True))
"""For each panel, the standard deviation of the noise of V, and whether texts contain thoughts."""
WAYS: dict[str, dict[str, Any]] = {
    "mcts": {},
    "best_of_n": {"method": "best_of_n"},
    "beam": {"method": "beam", "options": {"width": 4}},
    "best_first": {"method": "best_first"},
    "ab_mcts": {"method": "ab_mcts"},
    "rebase": {"method": "rebase", "options": {"width": 6}},
}
"""Search methods by name, with the settings that differ from the defaults."""
_LIKELIHOOD_WEIGHT = EvaluateConfig().weight


@dataclass(frozen=True)
class Ladder:
    """The ladder as policy, value function and dynamics. The conversation of a state holds the actions so far."""

    height: int
    q: float
    noise: float
    thoughts: bool

    async def reset(self, task: Task) -> State:
        return State(task, (Message("user", "climb"),))

    async def step(self, state: State, action: Action) -> Transition:
        turn = Message("assistant", action.text, action.token_ids)
        after = State(state.task, (*state.messages, turn, Message("user", "on")))
        return Transition(after, reward=None, terminated=len(words_taken(after)) >= self.height)

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [self._propose(state, count, seed) for state, seed in zip(states, seeds, strict=True)]

    def _propose(self, state: State, count: int, seed: int) -> Proposal:
        good = right(state.task, len(words_taken(state)))
        chances = {word: self.q if word == good else (1 - self.q) / 3 for word in WORDS}
        rng = random.Random(seed)
        sampled_words = rng.choices(list(chances), list(chances.values()), k=count)
        if self.thoughts:
            return Proposal((1,), tuple(_action(word, 1e-12, f"{rng.random()} {word}") for word in sampled_words))
        return Proposal((1,), tuple(_action(word, chances[word], word) for word in sampled_words))

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        return [Estimate(self._value(state)) for state in states]

    def _value(self, state: State) -> float:
        steps = words_taken(state)
        noise = END_NOISE if len(steps) >= self.height else self.noise
        rng = random.Random(derive_seed("value", state.task.id, *steps))
        return (0.8 if climbs(state.task, steps) else 0.2) + rng.gauss(0, noise)


def _action(word: str, chance: float, text: str) -> Action:
    return Action(text, word, "", tuple(range(TOKENS)), (math.log(chance) / TOKENS,) * TOKENS)


def words_taken(state: State) -> tuple[str, ...]:
    """The words of the actions so far."""
    return tuple(message.content.split()[-1] for message in state.messages if message.role == "assistant")


def right(task: Task, step: int) -> str:
    return WORDS[derive_seed("right", task.id, step) % len(WORDS)]


def climbs(task: Task, steps: Sequence[str]) -> bool:
    """Whether all steps are right."""
    return all(word == right(task, index) for index, word in enumerate(steps))


def solved(tree: Tree, height: int) -> bool:
    """Whether the path that the search chose leads up the whole ladder."""
    steps = [str(edge.action.call) for edge in best_path(tree, likelihood_weight=_LIKELIHOOD_WEIGHT)]
    return len(steps) == height and climbs(tree.task, steps)


def arm(way: str, height: int, noise: float, thoughts: bool) -> str:
    return f"{way}, H = {height}, noise {noise:g}{', thoughts' * thoughts}"


def main() -> None:
    options = parser(__doc__, "horizon", seeds=(0, 1, 2, 3, 4))
    options.add_argument("--heights", type=int, nargs="+", default=[4, 8, 12, 16, 24], help="decisions of an episode")
    options.add_argument("--q", type=float, default=0.7, help="probability of the right action")
    options.add_argument("--tokens", type=int, default=1600, help="generated tokens a task")
    options.add_argument("--tasks", type=int, default=40, help="of a seed, its own ones")
    arguments = options.parse_args()
    limits = Limits(generated_tokens=arguments.tokens)
    with record_of(arguments, QUESTION, generated_tokens=arguments.tokens) as record:
        for seed in arguments.seeds:
            first = seed * arguments.tasks
            tasks = [Task(f"ladder {number}", "climb") for number in range(first, first + arguments.tasks)]
            for (noise, thoughts), height, way in product(PANELS, arguments.heights, WAYS):
                name, config = arm(way, height, noise, thoughts), SearchConfig(limits=limits, **WAYS[way])
                settings_hash = digest({"config": repr(config), "q": arguments.q, "tasks": arguments.tasks})
                if record.has(name, seed, settings_hash):
                    continue
                ladder = Ladder(height, arguments.q, noise, thoughts)
                trees = asyncio.run(make_search(ladder, ladder, config, ladder).run(tasks, range(len(tasks))))
                record.add(
                    Row(
                        name, seed, settings_hash, first_task=first,
                        solved="".join(str(int(solved(tree, height))) for tree in trees),
                        environment_steps=sum(tree.budget.environment_steps for tree in trees),
                        generated_tokens=sum(tree.budget.generated_tokens for tree in trees),
                        seconds=sum(tree.budget.seconds for tree in trees),
                        figures={
                            "height": height, "noise": noise, "q": arguments.q, "tokens": TOKENS, "thoughts": thoughts,
                        },
                    )
                )  # fmt: skip
                print(f"seed {seed}: {name}: {100 * record.result.of(name)[seed].success:.0f} %", flush=True)


if __name__ == "__main__":
    main()

"""What several simulations in flight cost in quality: the same number of simulations, 1 to 8 at once, on random trees.

    .venv/bin/python -m benchmarks.leaves

Success is the share of trees with known values (``KnownTree``) in which the most visited action at the root is the best
one. Every repetition has its own trees and tries every number of leaves on them. Batches are calls of the model.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import Figures, add_rounds, options_digest, record_of, repeating
from treeagent.search.config import Limits, SearchConfig
from treeagent.search.decide import best_path
from treeagent.search.mcts import GumbelSearch, Search
from treeagent.types import Action, Estimate, Message, Proposal, State, Task, Transition

QUESTION = "What do several simulations in flight cost in quality, at equal simulations?"
SELECTIONS = {"puct": Search, "gumbel": GumbelSearch}
LEAVES = (1, 2, 4, 8)


@dataclass(frozen=True)
class KnownTree:
    """A tree with ``actions`` actions at each of ``depth`` steps. Every edge has a merit in [-1, 1]; the return of a
    path is the mean merit of its edges, paid at its end. Policy logits and values are the truth plus noise.

    It is dynamics, policy and value function in one. The last message of a state is the state's index within its depth.
    """

    seed: int
    actions: int = 4
    depth: int = 5
    skill: float = 5.0
    """Prior ∝ exp(skill * Q + noise)."""
    prior_noise: float = 1.0
    value_noise: float = 0.2
    """Standard deviation of the noise in V; ``prior_noise`` is that of the logits."""
    returns: list[NDArray[np.float64]] = field(init=False, default_factory=list[NDArray[np.float64]])
    """For each depth, the best return below each state."""
    logits: list[NDArray[np.float64]] = field(init=False, default_factory=list[NDArray[np.float64]])
    estimates: list[NDArray[np.float64]] = field(init=False, default_factory=list[NDArray[np.float64]])

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        sums = [np.zeros(1)]
        for depth in range(1, self.depth + 1):
            sums.append(np.repeat(sums[-1], self.actions) + rng.uniform(-1, 1, self.actions**depth) / self.depth)
        best = sums[-1]
        self.returns.append(best)
        while len(best) > 1:
            best = best.reshape(-1, self.actions).max(axis=1)
            self.returns.insert(0, best)
        for best in self.returns:
            self.logits.append(self.skill * best + rng.normal(0, self.prior_noise, len(best)))
            self.estimates.append(best + rng.normal(0, self.value_noise, len(best)))

    @property
    def best_action(self) -> int:
        return int(self.returns[1].argmax())

    async def reset(self, task: Task) -> State:
        return State(task, (Message("user", "0 0"),))

    async def step(self, state: State, action: Action) -> Transition:
        depth, place = _place(state)
        depth, place = depth + 1, place * self.actions + int(str(action.call))
        ends = depth == self.depth
        reward = float(self.returns[depth][place]) if ends else 0.0
        said = (Message("assistant", action.text), Message("user", f"{depth} {place}"))
        return Transition(State(state.task, (*state.messages, *said)), reward, terminated=ends)

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [Proposal((), tuple(self._drawn(*_place(state)))) for state in states]

    def _drawn(self, depth: int, place: int) -> Iterator[Action]:
        for number in range(self.actions):
            logit = float(self.logits[depth + 1][place * self.actions + number])
            yield Action(str(number), str(number), token_ids=(number,), logprobs=(logit,))

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        places = [_place(state) for state in states]
        return [Estimate(float(self.estimates[depth][place])) for depth, place in places]


def _place(state: State) -> tuple[int, int]:
    depth, place = state.messages[-1].content.split()
    return int(depth), int(place)


def successes(
    trees: Sequence[KnownTree], config: SearchConfig, method: type[Search]
) -> tuple[NDArray[np.bool_], float]:
    """For each tree, whether the search finds the best action; and the mean number of batches per tree."""
    batches = 0
    found: list[bool] = []

    def note(_: object) -> None:
        nonlocal batches
        batches += 1

    for world in trees:
        search = method(world, world, config, world)
        [tree] = asyncio.run(search.run([Task("known", "")], [world.seed], note))
        found.append(best_path(tree, "visits")[0].action.text == str(world.best_action))
    return np.array(found), batches / len(trees)


def measure(trees: Sequence[KnownTree], simulations: int) -> Figures:
    """Success of each selection rule and number of leaves, on the same trees."""
    found: dict[str, dict[str, float]] = {}
    for selection, method in SELECTIONS.items():
        sequential = 0.0
        for leaves in LEAVES:
            limits = Limits(simulations=simulations)
            config = SearchConfig(limits=limits, options={"widening": 0}, leaves=leaves)
            right, batches = successes(trees, config, method)
            share = float(right.mean())
            sequential = share if leaves == 1 else sequential
            found[arm(selection, leaves)] = {
                "success": share,
                "lost, %": 100 * (1 - share / sequential),
                "batches": batches,
            }
    return found


def arm(selection: str, leaves: int) -> str:
    return f"{selection}, {leaves} {'leaves' if leaves > 1 else 'leaf'}"


def main() -> None:
    options = repeating(__doc__, "leaves", rounds=10)
    options.add_argument("--trees", type=int, default=100, help="of a repetition, its own ones")
    options.add_argument("--simulations", type=int, default=64)
    arguments = options.parse_args()
    arms = [arm(selection, leaves) for selection in SELECTIONS for leaves in LEAVES]
    with record_of(arguments, QUESTION, simulations=arguments.simulations) as record:
        add_rounds(
            record, arguments.rounds, options_digest(arguments), arms,
            lambda number: measure(
                [KnownTree(seed) for seed in range(number * arguments.trees, (number + 1) * arguments.trees)],
                arguments.simulations,
            ),
        )  # fmt: skip


if __name__ == "__main__":
    main()

"""A world in which many paths lead to the same place and every combination of search settings."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st
from toy_search import HashValue, TablePolicy, after, begin, calls, share

from treeagent.search.config import Limits, SearchConfig
from treeagent.search.node import Tree
from treeagent.search.searcher import OnBatch, make_search
from treeagent.types import Action, State, Task, Transition, derive_seed

WORDS = {"a": 0.4, "b": 0.3, "c": 0.2, "wrong": 0.1}
DEPTH = 6


@dataclass(frozen=True)
class Tangle:
    """Four places. The next place and the reward at an end depend on the place, the steps so far
    and the word. One word is refused and leads nowhere."""

    end_share: float = 0.2

    async def reset(self, task: Task) -> State:
        return begin(task, f"{task.id} place 0")

    async def step(self, state: State, action: Action) -> Transition:
        here, word, steps = state.messages[-1].content, str(action.call), len(calls(state)) + 1
        refused = word == "wrong"
        ends = not refused and share("luck", here, word, str(steps)) < self.end_share
        place = here.split()[-1] if refused else str(derive_seed("go", here, word) % 4)
        reached = after(state, action, f"{state.task.id} step {steps} place {place}")
        return Transition(
            reached,
            reward=share("reward", here, word) if ends else 0.0,
            terminated=ends,
            truncated=not ends and steps == DEPTH,
            invalid=refused,
        )


class PlaceValue(HashValue):
    """V(s) is a hash of the place in [0, 1), so states with equal keys have equal values."""

    @staticmethod
    def of(state: State) -> float:
        return share("value", state.messages[-1].content)


configs = st.builds(
    SearchConfig,
    limits=st.builds(Limits, simulations=st.integers(1, 40)),
    candidates=st.integers(1, 5),
    method=st.sampled_from(["mcts", "gumbel"]),
    options=st.fixed_dictionaries({"c_init": st.floats(0, 4), "widening": st.sampled_from([0, 1, 2])}),
    discount=st.sampled_from([1.0, 0.9]),
    leaves=st.integers(1, 6),
)
"""Every combination of search settings."""
worlds = st.builds(Tangle, end_share=st.floats(0, 0.6))
seeds = st.integers(0, 2**63 - 1)


def search(
    config: SearchConfig,
    world: Tangle,
    tasks: Sequence[Task],
    seeds: Sequence[int],
    on_batch: OnBatch | None = None,
) -> list[Tree]:
    return asyncio.run(make_search(TablePolicy(WORDS), world, config, PlaceValue()).run(tasks, seeds, on_batch))

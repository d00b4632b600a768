"""A search with a good end leaves unlikely calls alone. Here the policy samples b only after a is explored."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from toy_search import TablePolicy, task
from written_world import Written, where

from treeagent.config import EvaluateConfig
from treeagent.pipeline.play import Actors, play, replan
from treeagent.search.config import Limits, SearchConfig
from treeagent.types import Action, Estimate, State, Transition

POLICY = TablePolicy({"a": 0.97, "b": 0.03})
SEARCH = SearchConfig(Limits(simulations=200))
PLAIN = EvaluateConfig(likelihood_weight=0.0)
SEED = 2
"""With this seed the first sample is a."""


@dataclass(frozen=True)
class Visited(Written):
    """Records the states that were reached, and withholds the rewards of ``play``."""

    reached: list[str] = field(default_factory=list[str])
    withheld: bool = False

    async def step(self, state: State, action: Action) -> Transition:
        transition = await super().step(state, action)
        self.reached.append(where(transition.state))
        return replace(transition, reward=None) if self.withheld else transition


@dataclass(frozen=True)
class Rating:
    """V(s) by state."""

    values: Mapping[str, float]

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        return [Estimate(self.values.get(where(state), 0.0), (len(state.messages),)) for state in states]


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (PLAIN, ["a"]),
    ],
)
def test_planning_stops_at_a_good_end_where_ends_decide(config: EvaluateConfig, found: list[str]) -> None:
    world = Visited(ends={"a": 0.0, "b": 0.0}, withheld=True)
    actors = Actors(POLICY, POLICY, Rating({"a": 0.9, "b": 0.6}))
    _, [tree], _ = asyncio.run(play(actors, world, world, [task()], "mcts", config, SEARCH, SEED))
    assert [edge.action.text for edge in tree.root.edges] == found


@pytest.mark.parametrize(
    ("rewards", "ends", "returns", "tried"),
    [
        # After a, which pays 0.5, another 0.5 is as good as it gets.
        ({"a": 0.5}, {"aa": 0.5, "ab": 0.0, "b": 0.0}, (0.0, 1.0), False),
    ],
)
def test_planning_in_a_world_model_counts_what_the_episode_has_returned(
    rewards: Mapping[str, float], ends: Mapping[str, float], returns: tuple[float, float], tried: bool
) -> None:
    model, real = Visited(rewards=rewards, ends=ends), Written(rewards=rewards, ends=ends)
    actors = Actors(POLICY, POLICY, None)
    [outcome], _, _ = asyncio.run(replan(actors, model, real, [task()], "mcts", PLAIN, SEARCH, SEED, returns=returns))
    assert ("ab" in model.reached) is tried
    assert outcome.reward == pytest.approx(0.1 if tried else 1.0)

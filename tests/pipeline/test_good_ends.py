"""A search with a good end leaves unlikely calls alone. Here the policy samples b only after a is explored."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from toy_search import TablePolicy, task
from written_world import Written, where

from treeagent.config import EvaluateConfig, RunConfig
from treeagent.pipeline.play import Actors, play, replan
from treeagent.search.config import Limits, SearchConfig
from treeagent.types import Action, Estimate, State, Transition

POLICY = TablePolicy({"a": 0.97, "b": 0.03})
PLAIN = RunConfig(seed=0, search=SearchConfig(Limits(simulations=200)), evaluate=EvaluateConfig(likelihood_weight=0.0))
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


def test_planning_stops_at_a_good_end_where_ends_decide() -> None:
    world = Visited(ends={"a": 0.0, "b": 0.0}, withheld=True)
    actors = Actors(POLICY, POLICY, Rating({"a": 0.9, "b": 0.6}))
    _, [tree], _ = asyncio.run(play(actors, world, world, [task()], "mcts", PLAIN))
    assert [edge.action.text for edge in tree.root.edges] == ["a"]


def test_planning_in_a_world_model_counts_what_the_episode_has_returned() -> None:
    """After a, which pays 0.5, another 0.5 is as good as it gets."""
    rewards, ends = {"a": 0.5}, {"aa": 0.5, "ab": 0.0, "b": 0.0}
    model, real = Visited(rewards=rewards, ends=ends), Written(rewards=rewards, ends=ends)
    [outcome], _, _ = asyncio.run(replan(Actors(POLICY, POLICY, None), model, real, [task()], "mcts", PLAIN))
    assert "ab" not in model.reached
    assert outcome.reward == pytest.approx(1.0)

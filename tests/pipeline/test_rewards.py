"""A reward of the user's own: what search and learning see, and what stays with the environment."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from toy_search import task
from written_world import InOrder, Written

from treeagent.config import RewardsConfig, RunConfig
from treeagent.envs.example import Example
from treeagent.pipeline.rewards import Place, RewardedDynamics, Step, make_reward
from treeagent.search import Limits, Search, SearchConfig
from treeagent.search.node import Tree, outcome, path_return, succeeds
from treeagent.search.record import from_record, to_record
from treeagent.types import UserError


def place(function: str, options: dict[str, float]) -> Place:
    return Place(RunConfig(rewards=RewardsConfig(function, options)), Example(), Path("run"), "collect")


def brief(step: Step, cost: float = 0.25) -> float:
    return step.reward - cost


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class CountOptions:
    scale: float = 1.0


class Count:
    """Pays for the number of steps that are scored together."""

    options_type = CountOptions

    def __init__(self, options: CountOptions, place: Place) -> None:
        self.scale, self.sizes, self.place = options.scale, list[int](), place

    async def score(self, steps: Sequence[Step]) -> Sequence[float | None]:
        self.sizes.append(len(steps))
        return [self.scale * step.reward for step in steps]


def grown(function: str, **options: float) -> Tree:
    """A search of a world in which a pays 1, and b pays 0."""
    world = Written(ends={"a": 1.0, "b": 0.0})
    reward = make_reward(place(f"{__name__}:{function}", options))
    config = SearchConfig(limits=Limits(simulations=4), candidates=2, options={"widening": 0})
    search = Search(InOrder("ab"), RewardedDynamics(world, reward), config)
    [tree] = asyncio.run(search.run([task()], [0]))
    return tree


def test_search_sees_the_function_and_success_stays_with_the_environment() -> None:
    tree = grown("brief", cost=0.25)
    good, bad = sorted(tree.root.edges, key=lambda edge: edge.action.text)
    assert (good.reward, good.outcome, good.value, bad.value) == (0.75, 1.0, 0.75, -0.25)
    assert (path_return([good]), outcome([good]), succeeds([good])) == (0.75, 1.0, True)
    [again, _] = sorted(from_record(to_record(tree)).root.edges, key=lambda edge: edge.action.text)
    assert (again.reward, again.outcome) == (0.75, 1.0)


def test_steps_of_one_moment_are_scored_together() -> None:
    reward = make_reward(place(f"{__name__}:Count", {"scale": 2.0}))
    dynamics = RewardedDynamics(Written(ends={"a": 1.0, "b": 0.0}), reward)

    async def play() -> list[float | None]:
        start = await dynamics.reset(task())
        [proposal] = await InOrder("ab").propose([start], 2, [0])
        return [each.reward for each in await asyncio.gather(*(dynamics.step(start, a) for a in proposal.actions[:2]))]

    assert sorted(asyncio.run(play()), key=float) == [0.0, 2.0]  # type: ignore[arg-type]
    assert isinstance(reward, Count) and reward.sizes == [2] and reward.place.stage == "collect"


@pytest.mark.parametrize(
    ("function", "options", "named"),
    [
        (f"{__name__}:Count", {"scales": 1.0}, "scales"),
        (f"{__name__}:Path", {}, "name a function"),
        ("nowhere:brief", {}, "nowhere"),
        ("no_such_name", {}, "no_such_name"),
    ],
)
def test_a_wrong_function_is_named(function: str, options: dict[str, float], named: str) -> None:
    with pytest.raises(UserError, match=named):
        make_reward(place(function, options))

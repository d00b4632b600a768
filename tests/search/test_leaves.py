"""Several simulations of one tree in flight at once."""

import asyncio
from dataclasses import dataclass, field

import pytest
from toy_search import AllPolicy, HashValue, Maze, grow, task

from treeagent.search.config import Limits, SearchConfig
from treeagent.search.mcts import Search
from treeagent.types import Action, State, Task, Transition

ENDLESS = Maze(end_share=0.0, limit_share=0.0)


@dataclass
class Slow:
    """Waits in every step, like a server, and counts how many steps wait together."""

    waiting: int = 0
    together: list[int] = field(default_factory=list[int])

    async def reset(self, task: Task) -> State:
        return await ENDLESS.reset(task)

    async def step(self, state: State, action: Action) -> Transition:
        self.waiting += 1
        await asyncio.sleep(0)
        self.together.append(self.waiting)
        await asyncio.sleep(0)
        self.waiting -= 1
        return await ENDLESS.step(state, action)


@pytest.mark.parametrize("method", ["mcts", "gumbel"])
def test_leaves_are_stepped_and_estimated_together(method: str) -> None:
    """Four at once from the first batch on, in which all wait for the candidates of the root."""
    value, world = HashValue(), Slow()
    config = SearchConfig(limits=Limits(simulations=64), leaves=4, method=method)
    [tree] = grow(AllPolicy("a", "b", "c", "d"), world, config, value)
    assert value.calls == [1] + [4] * 16
    assert max(world.together) == 4
    assert len(list(tree.nodes())) == 65


def test_the_first_batches_by_hand() -> None:
    """There are three words for five leaves. All leaves wait for the root's candidates; three of them try one each, and
    two have nothing left to try. Then five wait for candidates of the three states, and two more need none."""
    batches: list[int] = []
    search = Search(AllPolicy("a", "b", "c"), ENDLESS, SearchConfig(limits=Limits(simulations=10), leaves=5))
    [tree] = asyncio.run(search.run([task()], [0], lambda trees: batches.append(trees[0].budget.simulations)))
    assert batches == [0, 3, 10]
    assert tree.budget.proposals == 4  # the root and its three children
    assert [edge.visits for edge in tree.root.edges] == [4, 3, 3]

"""Returns with a discount: V at an end stands for the withheld reward, and a failed path returns the failure itself."""

import asyncio
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_search import Maze, TablePolicy, act, begin, calls, share, task

from treeagent.search import Edge, Limits, Node, SearchConfig, make_search, path_return
from treeagent.types import Estimate, State


def test_three_steps_to_a_success_by_hand() -> None:
    """γ = 0.9: the reward comes with the third step, so the path returns 0.81, whether the reward is seen or V stands
    for it. Where the episode goes on, V is the value of the state after the step: 0.729."""
    for reward, terminated, expected in ((1.0, True, 0.81), (None, True, 0.81), (None, False, 0.729)):
        rewards = (0.0, 0.0, reward) if reward else (None, None, None)
        path = [Edge(act("go"), 1.0, reward=each, child=Node(begin(task(), "here"))) for each in rewards]
        path[-1].child = Node(begin(task(), "end"), value=1.0, terminated=terminated)
        assert path_return(path, 0.9) == pytest.approx(expected)


@dataclass(frozen=True)
class Judge:
    """V(s) of an end is its reward; V of other states is a hash."""

    maze: Maze

    async def estimate(self, states: list[State]) -> list[Estimate]:
        return [Estimate(await self._of(state)) for state in states]

    async def _of(self, state: State) -> float:
        steps = (state.task.id, *calls(state))
        return share("reward", *steps) if state.ended else share("value", *steps)


@given(
    st.builds(Maze, end_share=st.floats(0.1, 0.6), limit_share=st.just(0.0)),
    st.sampled_from(["mcts", "gumbel", "best_of_n", "beam", "best_first"]),
    st.sampled_from([1.0, 0.9, 0.5]),
    st.integers(0, 2**63 - 1),
)
def test_the_same_tree_has_the_same_values_with_rewards_withheld(
    maze: Maze, method: str, discount: float, seed: int
) -> None:
    """V(end) = r. Rewards come at ends alone, so nothing else differs."""
    config = SearchConfig(Limits(simulations=24), method, discount=discount, leaves=2)

    def grown(world: Maze) -> list[tuple[str, int, float]]:
        policy = TablePolicy({"a": 0.5, "b": 0.3, "c": 0.2})
        search = make_search(policy, world, config, Judge(maze))  # type: ignore[arg-type]
        [tree] = asyncio.run(search.run([task()], [seed]))
        return [(edge.action.text, edge.visits, edge.value_sum) for node in tree.nodes() for edge in node.edges]

    seen, withheld = grown(maze), grown(replace(maze, withheld=True))
    assert [each[:2] for each in seen] == [each[:2] for each in withheld]
    assert [each[2] for each in seen] == pytest.approx([each[2] for each in withheld])

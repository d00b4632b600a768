"""Steps that lead back to a state of their own path."""

from collections.abc import Sequence
from dataclasses import replace

from toy_search import AllPolicy, after, begin, calls, grow

from treeagent.search.config import Limits, SearchConfig
from treeagent.search.node import Node, Tree
from treeagent.types import Action, Estimate, State, Task, Transition


class Hall:
    """Walk from cell 0 to cell ``goal``, in at most 30 steps, each of which costs ``price`` and can be undone."""

    def __init__(self, goal: int = 7, price: float = 0.0) -> None:
        self.goal, self.price = goal, price

    async def reset(self, task: Task) -> State:
        return replace(begin(task, "0"), place="cell 0")

    async def step(self, state: State, action: Action) -> Transition:
        moves = {"left": -1, "right": 1, "look": 0}
        cell = max(int(state.messages[-1].content) + moves[str(action.call)], 0)
        steps, done = len(calls(state)) + 1, cell == self.goal
        reached = replace(after(state, action, str(cell)), place=f"cell {cell}")
        reward = float(done) - self.price
        return Transition(reached, reward=reward, terminated=done, truncated=not done and steps == 30)


class Sure:
    """V(s) is the same everywhere."""

    def __init__(self, value: float = 0.9) -> None:
        self.value, self.estimated = value, list[State]()

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        self.estimated += states
        return [Estimate(self.value, (1,)) for _ in states]


POLICY = AllPolicy("left", "right", "look")


def config(*, prune: bool, simulations: int = 40) -> SearchConfig:
    return SearchConfig(
        limits=Limits(simulations=simulations), candidates=3, options={"widening": 0}, prune_repeats=prune
    )


def repeats(tree: Tree) -> list[Node]:
    return [node for node in tree.nodes() if node.repeat]


def test_nothing_grows_beyond_a_repeated_state() -> None:
    value = Sure()
    [tree] = grow(POLICY, Hall(), config(prune=True), value)
    assert {node.state.place for node in repeats(tree)} >= {"cell 0", "cell 1"}
    for path, node in tree.walk():
        places = [each.state.place for each in tree.states(path)]
        assert node.repeat == (node.state.place in places[:-1])
        assert not (node.repeat and node.edges)
        assert node.value == (0.0 if node.repeat else 0.9) or node.ended
    assert not any(state is node.state for node in repeats(tree) for state in value.estimated)

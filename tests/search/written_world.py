"""A world and a value function given by tables, for trees computed by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from toy_search import act, after, begin, calls

from treeagent.search.node import Edge, Tree
from treeagent.types import Action, Estimate, Proposal, State, Task, Transition


@dataclass(frozen=True)
class Written:
    """Any word leads on; "ab" is the state after a and b."""

    values: Mapping[str, float] = field(default_factory=dict[str, float])
    """V by state; 0 by default."""
    ends: Mapping[str, float] = field(default_factory=dict[str, float])
    """Rewards of the ends, by state."""
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    """Rewards on arrival in other states."""
    refused: Sequence[str] = ()
    """States that a refused call leads to."""
    untold: Sequence[str] = ()
    """States that the dynamics reports as unknown."""

    async def reset(self, task: Task) -> State:
        return begin(task, "")

    async def step(self, state: State, action: Action) -> Transition:
        place = where(state) + str(action.call)
        return Transition(
            after(state, action, place),
            reward=self.ends.get(place, self.rewards.get(place, 0.0)),
            terminated=place in self.ends,
            invalid=place in self.refused,
            error="unreadable" if place in self.untold else "",
        )

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        return [Estimate(self.values.get(where(state), 0.0), (len(state.messages),)) for state in states]


def where(state: State) -> str:
    return "".join(calls(state))


@dataclass(frozen=True)
class InOrder:
    """Draws the first ``count`` of its words, with one token each. By default they are equally likely."""

    words: str
    logprobs: Mapping[str, float] = field(default_factory=dict[str, float])

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        actions = tuple(act(word, self.logprobs.get(word, -1.0)) for word in self.words[:count])
        return [Proposal((len(state.messages),), actions) for state in states]


def said(path: Sequence[Edge]) -> str:
    return "".join(edge.action.text for edge in path)


def statistics(tree: Tree) -> dict[str, tuple[int, float]]:
    """(N, W) of every edge that was stepped, by the state that it leads to; W to nine decimals."""
    return {said(path): (path[-1].visits, round(path[-1].value_sum, 9)) for path, _ in tree.walk() if path}

"""Search a tree without a model: reach 13 from 1 by adding 1 or doubling, in at most five steps."""

import asyncio
from collections.abc import Sequence

from treeagent.search import Limits, Search, SearchConfig, best_path
from treeagent.types import Action, Message, Proposal, State, Task, Transition


class Uniform:
    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [Proposal((), (Action("add", "add"), Action("double", "double")))] * len(states)


class Numbers:
    async def reset(self, task: Task) -> State:
        return State(task, (Message("user", "1"),), key="1")

    async def step(self, state: State, action: Action) -> Transition:
        number = int(state.messages[-1].content)
        number = number + 1 if action.call == "add" else number * 2
        messages = (*state.messages, Message("assistant", action.text), Message("user", str(number)))
        return Transition(
            State(state.task, messages, key=f"{number} after {len(messages)}"),
            reward=float(number == 13),
            terminated=number >= 13,
            truncated=number < 13 and len(messages) > 10,
        )


async def main() -> None:
    search = Search(Uniform(), Numbers(), SearchConfig(limits=Limits(simulations=64)))
    [tree] = await search.run([Task("thirteen", "Reach 13.")], seeds=[0])
    for edge in best_path(tree):
        print(edge.action.text, edge.visits, round(edge.value, 2))


if __name__ == "__main__":
    asyncio.run(main())

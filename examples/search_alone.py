"""Tree search without a language model: reach 22 from 1 by the actions "add 3" and "double".

A search asks a policy for actions and a dynamics for their results. Here both are a few lines of Python.

    python examples/search_alone.py
"""

import asyncio
from collections.abc import Sequence

from treeagent.search import Limits, Search, SearchConfig, best_path
from treeagent.types import Action, Proposal, State, Task, Transition


class Puzzle:
    async def reset(self, task: Task) -> State:
        return State(task, (), key="1")

    async def step(self, state: State, action: Action) -> Transition:
        number = int(str(state.key))
        number = number + 3 if action.call == "add 3" else number * 2
        return Transition(State(state.task, (), str(number)), reward=float(number == 22), terminated=number >= 22)


class AnyMove:
    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [Proposal(actions=(Action("add 3", "add 3"), Action("double", "double")))] * len(states)


search = Search(AnyMove(), Puzzle(), SearchConfig(Limits(simulations=100)))
[tree] = asyncio.run(search.run([Task("22", "from 1 to 22")], seeds=[0]))
print(" -> ".join(str(edge.action.call) for edge in best_path(tree)))

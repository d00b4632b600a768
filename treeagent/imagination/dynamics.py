"""A dynamics that opens tasks in the environment and goes on in a world model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from treeagent.types import Action, Dynamics, State, Task, Transition

if TYPE_CHECKING:
    pass  # its package is an extra


@dataclass(frozen=True, slots=True)
class Imagination:
    """A dynamics whose tasks open in the environment, which takes no step of it, and go on in a world model."""

    environment: Dynamics
    model: Dynamics

    async def reset(self, task: Task) -> State:
        return await self.environment.reset(task)

    async def step(self, state: State, action: Action) -> Transition:
        return await self.model.step(state, action)

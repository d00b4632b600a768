"""A dynamics that starts tasks in the environment and continues them in a world model."""

from dataclasses import dataclass

from treeagent.types import Action, Dynamics, State, Task, Transition


@dataclass(frozen=True, slots=True)
class Imagination:
    """Starts each task by a reset of the environment, which costs no step. The world model imagines all later steps."""

    environment: Dynamics
    model: Dynamics

    async def reset(self, task: Task) -> State:
        return await self.environment.reset(task)

    async def step(self, state: State, action: Action) -> Transition:
        return await self.model.step(state, action)

"""A reward of your own: a function of a ``Step``, named by ``rewards.function`` as "module:function", which search and
learning see in place of the environment's reward. That stays with each step (``Edge.outcome``) and decides on success;
evaluation withholds rewards, and never calls the function."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from treeagent import seams
from treeagent.config import RunConfig
from treeagent.envs.base import Env
from treeagent.types import Action, Dynamics, State, Task, Transition, UserError


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an episode, as input of a reward."""

    before: State
    """The state before the action, with the conversation so far and ``paid``, the sum of this function's rewards."""
    action: Action
    result: Transition
    """What followed, with the environment's own reward and its ``info``."""

    @property
    def task(self) -> Task:
        return self.before.task

    @property
    def observation(self) -> str:
        return self.result.state.messages[-1].content

    @property
    def reward(self) -> float:
        """The environment's own reward of the step."""
        return self.result.reward or 0.0

    @property
    def ended(self) -> bool:
        return self.result.terminated or self.result.truncated


class Reward(Protocol):
    """A reward that is asked about many steps at once. Its class has the attribute ``options_type``, a dataclass that
    checks ``rewards.options``, and is made with a value of it and the ``Place``."""

    async def score(self, steps: Sequence[Step]) -> Sequence[float | None]:
        """The reward of each step. None leaves it open: V(s) of the state that follows then stands for it."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reward is used."""

    config: RunConfig
    env: Env
    """Its episodes are in use: only ask it what does not depend on them, such as its tools."""
    run: Path
    stage: str
    """The stage that searches, which is also the name of its trees."""


class _Plain:
    """A function of one step as a ``Reward``."""

    def __init__(self, function: Callable[..., float | None], options: dict[str, Any]) -> None:
        self._score = partial(function, **options)

    async def score(self, steps: Sequence[Step]) -> Sequence[float | None]:
        return list(map(self._score, steps))


def make_reward(place: Place, name: str | None = None, options: dict[str, Any] | None = None) -> Reward:
    """The reward that the settings name, or the one of this name and options."""
    settings = place.config.rewards
    name, options = (settings.function, settings.options) if name is None else (name, options or {})
    found = seams.resolve("rewards.function", name, {})
    if (options_type := getattr(found, "options_type", None)) is not None:
        made: Reward = found(seams.checked(options_type, options, f"rewards.function {name!r}"), place)
        return made
    if not callable(found) or isinstance(found, type):
        raise UserError(f"rewards.function {name!r} is a {type(found).__name__}: name a function of a Step")
    return _Plain(found, options)


class RewardedDynamics:
    """A dynamics whose steps have another reward. All steps of one iteration of the event loop are scored together."""

    def __init__(self, dynamics: Dynamics, reward: Reward) -> None:
        self._dynamics, self._reward = dynamics, reward
        self._batch: tuple[list[Step], asyncio.Task[Sequence[float | None]]] | None = None

    async def reset(self, task: Task) -> State:
        return await self._dynamics.reset(task)

    async def step(self, state: State, action: Action) -> Transition:
        transition = await self._dynamics.step(state, action)
        if transition.error:
            return transition
        reward = await self._score(Step(state, action, transition))
        if reward is not None and not (isinstance(reward, int | float) and math.isfinite(reward)):
            raise UserError(f"rewards.function gave {reward!r:.80}: return a finite number or None")
        return transition._replace(reward=reward, outcome=transition.reward)

    async def _score(self, step: Step) -> float | None:
        if self._batch is None or self._batch[1].done():
            steps: list[Step] = []
            self._batch = steps, asyncio.create_task(self._score_all(steps))
        steps, scored = self._batch
        steps.append(step)
        index = len(steps) - 1
        # Shielded: if one step runs out of time, its cancellation must not cancel the others.
        return (await asyncio.shield(scored))[index]

    async def _score_all(self, steps: Sequence[Step]) -> Sequence[float | None]:
        self._batch = None
        return await self._reward.score(steps)

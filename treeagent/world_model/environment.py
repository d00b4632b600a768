"""A world model in the form of an environment. It has the shape of ``envs.base.Env`` without importing it."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

from treeagent.types import Action, Dynamics, Origin, Split, State, Task, ToolCall, Transition, Unanswered, UserError
from treeagent.world_model.transition import answered, call_text


class ImaginedEnv:
    """An environment played by a dynamics, such as an ``ExperienceModel`` with ``format=None``.

    The model runs in its own thread and event loop, so that it can be stepped from within another loop. There is no
    verifier: the reward is the model's own guess.
    """

    snapshot_kind: Literal["exact", "replay", "none"] = "exact"
    stochastic: bool = False
    """A step depends on state and action alone, at every temperature."""
    snapshot_portable: bool = True
    origin: Origin = "imagined"

    def __init__(self, dynamics: Dynamics, tasks: Sequence[Task] = ()) -> None:
        self._dynamics = dynamics
        self._tasks = tasks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="imagination")
        self._runner = asyncio.Runner()
        self._state: State | None = None
        self._closed = False

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        """Start ``options["task"]``, or task number ``seed``."""
        task = (options or {}).get("task")
        if task is None and self._tasks:
            task = self._tasks[(seed or 0) % len(self._tasks)]
        if not isinstance(task, Task):
            raise UserError(f"options['task'] is a {type(task).__name__}: give a Task")
        self._state = self._thread.submit(lambda: self._runner.run(self._dynamics.reset(task))).result()
        return self._state.messages[0].content, {}

    def step(self, action: str | ToolCall) -> tuple[str, float, bool, bool, dict[str, object]]:
        """(observation, reward, terminated, truncated, info).

        Raises:
            Unanswered: the model's answer was not readable.
            ValueError: no episode has begun, or it is over.
        """
        state = self._here()
        transition = self._thread.submit(lambda: self._runner.run(self._step(state, action))).result()
        self._state = replace(transition.state, ended=transition.terminated)
        observation = answered(transition.state.messages)
        if transition.reward is None:
            raise Unanswered(f"the world model cannot tell what follows {call_text(action)!r}: {transition.error}")
        info: dict[str, object] = {"tool_error": observation} if transition.invalid else {}
        return observation, transition.reward, transition.terminated, transition.truncated, info

    async def _step(self, state: State, action: str | ToolCall) -> Transition:
        # A bare call: in a turn of some format, a call of several lines could be read differently.
        return await self._dynamics.step(state, Action(call_text(action), action))

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        """The given tasks that are of this split."""
        found = [task for task in self._tasks if task.split == split][start : start + count]
        if len(found) < count:
            raise UserError(
                f"there are {len(found)} {split} tasks from number {start} on, not {count}: give more tasks"
            )
        return found

    def tools(self) -> Sequence[Any]:
        return ()

    def legal_actions(self) -> list[str] | None:
        return None

    def verify(self) -> float | None:
        return None

    def snapshot(self) -> object:
        return self._here()

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        if not isinstance(snapshot, State):
            raise UserError(
                f"a {type(snapshot).__name__} is no snapshot of an ImaginedEnv: restore what snapshot() gave"
            )
        self._state = snapshot

    def state_key(self) -> str | None:
        return None

    def demonstrator(self, noise: float) -> None:
        return None

    def variations(self, task: Task, rng: random.Random) -> Sequence[Task]:
        return ()

    def close(self) -> None:
        """Stop the thread. Calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self._thread.submit(self._runner.close).result()
            self._thread.shutdown()

    def _here(self) -> State:
        if self._state is None:
            raise ValueError("no episode has begun: call reset first")
        return self._state

"""A world model as an environment."""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from treeagent.envs.base import Env, SnapshotKind, StepResult, task_to_play
from treeagent.types import Action, Dynamics, Origin, Split, State, Task, ToolCall, Unanswered
from treeagent.world_model.transition import call_text, last_answer


class ImaginedEnv(Env):
    """An environment simulated by a dynamics, such as an ``ExperienceModel`` with ``format=None``. A subclass defines
    ``tasks``.

    The model runs in its own thread and event loop, so it can be stepped from within another loop. There is no
    verifier: the reward is the model's prediction.
    """

    snapshot_kind: SnapshotKind = "exact"
    origin: Origin = "imagined"

    def __init__(self, dynamics: Dynamics) -> None:
        self._dynamics = dynamics
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="imagination")

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        task = task_to_play(self, seed, options)
        self._state = self._thread.submit(asyncio.run, self._dynamics.reset(task)).result()
        return self._state.messages[0].content, {}

    def step(self, action: str | ToolCall) -> StepResult:
        """Imagine one step, as ``Env.step``.

        Raises:
            Unanswered: the model's answer cannot be parsed.
            ValueError: the episode is over.
        """
        # A bare call, because a call of several lines could be parsed differently within a turn of some format.
        called = Action(call_text(action), action)
        transition = self._thread.submit(asyncio.run, self._dynamics.step(self._state, called)).result()
        self._state = replace(transition.state, ended=transition.terminated)
        observation = last_answer(transition.state.messages)
        if transition.reward is None:
            raise Unanswered(f"the world model cannot tell what follows {call_text(action)!r}: {transition.error}")
        info: dict[str, object] = {"tool_error": observation} if transition.invalid else {}
        return observation, transition.reward, transition.terminated, transition.truncated, info

    @abstractmethod
    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]: ...

    def snapshot(self) -> object:
        return self._state

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        assert isinstance(snapshot, State)
        self._state = snapshot

    def close(self) -> None:
        self._thread.shutdown()

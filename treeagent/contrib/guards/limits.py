"""Limits of the bytes that an agent reads."""

from collections.abc import Mapping
from typing import Annotated

import pydantic.dataclasses
from pydantic import ConfigDict, Field

from treeagent.envs.base import Env, EnvWrapper, StepResult
from treeagent.types import ToolCall


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Bytes:
    """Limits in bytes of UTF-8; None is no limit."""

    observation: Annotated[int, Field(gt=0)] | None = None
    """Most bytes of an observation. The rest is cut, and a note says how many bytes."""
    episode: Annotated[int, Field(gt=0)] | None = None
    """Bytes of all observations together, beyond which the episode is truncated."""


class LimitedEnv(EnvWrapper):
    """Cuts long observations, and truncates an episode in which the agent has read too much."""

    options_type = Bytes

    def __init__(self, env: Env, options: Bytes) -> None:
        super().__init__(env)
        self._limits, self._read = options, 0

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._read = 0
        return self._cut(observation), info

    def step(self, action: str | ToolCall) -> StepResult:
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation = self._cut(observation)
        full = self._limits.episode is not None and self._read > self._limits.episode and not terminated
        return observation, reward, terminated, truncated or full, info

    def snapshot(self) -> object:
        return self.env.snapshot(), self._read

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        assert isinstance(snapshot, tuple)
        inner, self._read = snapshot
        self.env.restore(inner, reseed=reseed)

    def state_key(self) -> str | None:
        """Return the environment's key, preceded by the bytes read so far if they are limited."""
        key = self.env.state_key()
        return f"{self._read} {key}" if key is not None and self._limits.episode is not None else key

    def _cut(self, observation: str) -> str:
        content, limit = observation.encode(), self._limits.observation
        if limit is not None and len(content) > limit:
            text = content[:limit].decode(errors="ignore")
            observation = f"{text}\n[{len(content) - len(text.encode())} more bytes cut]"
        self._read += len(observation.encode())
        return observation

"""Forbidden calls, which never reach the environment."""

from collections.abc import Mapping
from typing import Annotated

import pydantic.dataclasses
from pydantic import ConfigDict, Field

from treeagent.contrib.guards.patterns import Patterns
from treeagent.envs.base import Env, EnvWrapper, StepResult
from treeagent.types import ToolCall

FORBIDDEN = "Forbidden call: "
"""First words of the observation after a forbidden call."""


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Shield:
    """Which calls are forbidden, and how much each of them costs."""

    deny: tuple[str, ...] = ()
    """Regular expressions of forbidden calls, as ``Patterns`` reads them."""
    penalty: Annotated[float, Field(ge=0)] = 0.0
    """Cost of each forbidden call, in units of reward. It lowers the verdict, but not below 0, and the step's
    reward."""


class ShieldedEnv(EnvWrapper):
    """Refuses forbidden calls: in search, in replay, of a demonstrator, in imagination and at evaluation. The agent
    gets an observation with the reason, which is also in ``info["tool_error"]``."""

    options_type = Shield

    def __init__(self, env: Env, options: Shield) -> None:
        super().__init__(env)
        self._options, self._patterns = options, Patterns(options.deny, env.tools())
        self._refused, self._terminated = 0, False

    def refusal(self, action: str | ToolCall) -> str | None:
        reason = self._reason(action)
        return super().refusal(action) if reason is None else FORBIDDEN + reason

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self._refused, self._terminated = 0, False
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str | ToolCall) -> StepResult:
        reason = self._reason(action)
        if reason is not None:
            self._refused += 1
            observation, cost = FORBIDDEN + reason, 0.0 - self._options.penalty
            return observation, cost, self._terminated, False, {"tool_error": observation}
        result = self.env.step(action)
        self._terminated = result[2]
        return result

    def legal_actions(self) -> list[str] | None:
        """Return the environment's legal actions without forbidden ones. If all are forbidden, return all; they are
        refused when they are tried."""
        legal = self.env.legal_actions()
        return legal if legal is None else [each for each in legal if self._reason(each) is None] or legal

    def verify(self) -> float | None:
        """Return the environment's verdict minus the penalties, but not below 0 unless the verdict itself is."""
        verdict = self.env.verify()
        return verdict if verdict is None else max(verdict - self._cost, min(verdict, 0.0))

    def snapshot(self) -> object:
        return self.env.snapshot(), self._refused, self._terminated

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        assert isinstance(snapshot, tuple)
        inner, self._refused, self._terminated = snapshot
        self.env.restore(inner, reseed=reseed)

    def state_key(self) -> str | None:
        """Return the environment's key, preceded by the penalties so far if there are any."""
        key = self.env.state_key()
        return f"{self._cost:g} {key}" if key is not None and self._options.penalty else key

    @property
    def _cost(self) -> float:
        return self._options.penalty * self._refused

    def _reason(self, action: str | ToolCall) -> str | None:
        """Why the call is forbidden, or None if it is allowed."""
        pattern = self._patterns.matched(action)
        return None if pattern is None else f"it matches {pattern!r}"

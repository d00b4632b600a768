"""Forbidden calls, which never reach the environment."""

import pydantic.dataclasses
from pydantic import ConfigDict

from treeagent.contrib.guards.patterns import Patterns
from treeagent.envs.base import Env, EnvWrapper, StepResult
from treeagent.types import ToolCall

FORBIDDEN = "Forbidden call: "
"""First words of the observation after a forbidden call."""


@pydantic.dataclasses.dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Shield:
    """Which calls are forbidden."""

    deny: tuple[str, ...] = ()
    """Regular expressions of forbidden calls, as ``Patterns`` reads them."""


class ShieldedEnv(EnvWrapper):
    """Refuses forbidden calls: in search, in replay, of a demonstrator, in imagination and at evaluation. The agent
    gets an observation with the reason, which is also in ``info["tool_error"]``."""

    options_type = Shield

    def __init__(self, env: Env, options: Shield) -> None:
        super().__init__(env)
        self._patterns = Patterns(options.deny, env.tools())

    def refusal(self, action: str | ToolCall) -> str | None:
        pattern = self._patterns.matched(action)
        return super().refusal(action) if pattern is None else f"{FORBIDDEN}it matches {pattern!r}"

    def step(self, action: str | ToolCall) -> StepResult:
        if (refused := self.refusal(action)) is not None:
            return refused, 0.0, False, False, {"tool_error": refused}
        return self.env.step(action)

    def legal_actions(self) -> list[str] | None:
        """Return the environment's legal actions without forbidden ones. If all are forbidden, return all; they are
        refused when they are tried."""
        legal = self.env.legal_actions()
        return legal if legal is None else [each for each in legal if self.refusal(each) is None] or legal

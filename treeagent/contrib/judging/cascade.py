"""Assesses the end of an episode by a judge alone, or by tiers: first rules, then a value head, then a judge.

A tier is asked only if the previous one abstains or is uncertain, so most ends cost nothing.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from treeagent.contrib.judging.components import Components
from treeagent.contrib.judging.config import RewardsConfig, Tier
from treeagent.contrib.judging.judge import Judge, ToolCaller, Verdict
from treeagent.types import State, Value, derive_seed

Learned = Callable[[], Awaitable[float | None]]
"""Returns V(s) of an end, or None if there is none."""


@dataclass(frozen=True, slots=True)
class Assessor:
    """Computes the components of an end that the settings ``judge`` and ``tiers`` describe."""

    config: RewardsConfig
    judge: Judge | None = None
    trust: float = 1.0
    """Cap c on the weight of the reward model. As a tier, the model's score is c V + (1 - c) m, where m is the middle
    of ``uncertain``. A model that is trusted less is therefore more often uncertain, and the next tier is asked."""

    async def assess(
        self, end: State, components: Components, learned: Learned, call_tool: ToolCaller | None = None
    ) -> dict[str, float]:
        """The components ``judge``, ``hacked``, ``learned``, ``verdict`` and ``spot_check`` of an end, as far as they
        are asked for and answered.

        With tiers, ``verdict`` is the score of the first tier that is certain, or else of the last tier that gives any.
        It is 0 if the judge says that the reward was hacked. If no tier gives a score, there is no ``verdict``.
        ``spot_check`` is the judge's score for a sample of the ends about which it was not asked as a tier: the share
        of yes answers, or 0 for a hack. Which ends are sampled depends only on the task's seed and the conversation.

        Args:
            call_tool: carries out the judge's tool calls.
            components: the end's other components, among them the rule's.
        """
        if not self.config.tiers:
            value = await learned() if self.config.learned is not None else None
            return verdict_components(await self._ask(end, call_tool)) | ({} if value is None else {"learned": value})
        low, high = self.config.uncertain
        found: dict[str, float] = {}
        tier: Tier = "judge"
        for tier in self.config.tiers:
            if tier == "judge":
                found |= verdict_components(await self._ask(end, call_tool))
            elif tier == "learned" and (value := await learned()) is not None:
                found["learned"] = value
            score = (components if tier == "rule" else found).get(component_of(tier, self.config))
            if score is not None:
                if tier == "learned":
                    middle = (low + high) / 2
                    score = self.trust * score + (1 - self.trust) * middle
                found["verdict"] = score
                if not low < score < high:
                    break
        if found.get("hacked"):
            found["verdict"] = 0.0
        if tier != "judge" and self._is_spot_checked(end) and (checked := await self._ask(end, call_tool)) is not None:
            found["spot_check"] = 0.0 if checked.hacked else checked.value
        return found

    def _is_spot_checked(self, end: State) -> bool:
        contents = (message.content for message in end.messages)
        return derive_seed("spot check", end.task.id, end.task.seed, *contents) < self.config.spot_checks * 2**63

    async def _ask(self, end: State, call_tool: ToolCaller | None) -> Verdict | None:
        return (
            None
            if self.judge is None
            else await self.judge.ask(end.task, end.messages, call_tool if self.judge.tools else None)
        )


def component_of(tier: Tier, config: RewardsConfig) -> str:
    """The component that holds the score of a tier."""
    return config.rule if tier == "rule" else tier


def deciding_tier(components: Components, config: RewardsConfig) -> Tier | None:
    """The tier that gave the verdict on an end: the last one with a score. None if there is none."""
    tiers = [tier for tier in config.tiers if component_of(tier, config) in components]
    return tiers[-1] if tiers else None


def verdict_components(verdict: Verdict | None) -> dict[str, float]:
    """The components of a judge's verdict; empty if there is no verdict."""
    if verdict is None:
        return {}
    hacked = {} if verdict.hacked is None else {"hacked": float(verdict.hacked)}
    return {"judge": verdict.value} | hacked


def value_of(value: Value | None, end: State) -> Learned:
    """A function that estimates V(s) of an end. It returns None if there is no value function, or if that cannot read
    the end."""

    async def estimate() -> float | None:
        if value is None:
            return None
        [found] = await value.estimate([end])
        return None if found.error else found.value

    return estimate

"""Who judges the end of an episode: a judge alone, or tiers from rules over a value head to a judge.

A tier is asked only where the one before it abstains or is uncertain, so that most ends cost nothing.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from treeagent.rewards.components import Components
from treeagent.rewards.config import RewardsConfig, Tier
from treeagent.rewards.judge import Judge, Look, Verdict
from treeagent.types import State, Value, derive_seed

Learned = Callable[[], Awaitable[float | None]]
"""V(s) of an end; None where there is none."""


@dataclass(frozen=True, slots=True)
class Assessor:
    """Gives the components of an end that the settings ``judge`` and ``tiers`` describe."""

    config: RewardsConfig
    judge: Judge | None = None
    trust: float = 1.0
    """Cap c on the weight of the reward model. As a tier it says c V + (1 - c) m, m being the middle of ``uncertain``:
    the less it may be trusted, the more often the next tier is asked."""

    async def assess(
        self, end: State, components: Components, learned: Learned, look: Look | None = None
    ) -> dict[str, float]:
        """The components ``judge``, ``hacked``, ``learned``, ``verdict`` and ``spot_check`` of an end, as far as they
        are asked for and answered.

        With tiers, ``verdict`` is what the first certain tier says, else what the last one says that says anything; it
        is 0 where the judge says that the reward was hacked. An end of which no tier says anything has none.
        ``spot_check`` is what the judge says of some of the ends about which it was not asked as a tier: the share of
        yes, or 0 for a hack. The choice of these ends depends on the task's seed and the conversation alone.

        Args:
            look: carries out the judge's calls of tools.
            components: the end's other components, among them the rule's.
        """
        if not self.config.tiers:
            value = await learned() if self.config.learned is not None else None
            return judged(await self._ask(end, look)) | ({} if value is None else {"learned": value})
        low, high = self.config.uncertain
        found: dict[str, float] = {}
        tier: Tier = "judge"
        for tier in self.config.tiers:
            if tier == "judge":
                found |= judged(await self._ask(end, look))
            elif tier == "learned" and (value := await learned()) is not None:
                found["learned"] = value
            said = (components if tier == "rule" else found).get(component_of(tier, self.config))
            if said is not None:
                if tier == "learned":
                    middle = (low + high) / 2
                    said = self.trust * said + (1 - self.trust) * middle
                found["verdict"] = said
                if not low < said < high:
                    break
        if found.get("hacked"):
            found["verdict"] = 0.0
        if tier != "judge" and self._spot(end) and (checked := await self._ask(end, look)) is not None:
            found["spot_check"] = 0.0 if checked.hacked else checked.value
        return found

    def _spot(self, end: State) -> bool:
        said = (message.content for message in end.messages)
        return derive_seed("spot check", end.task.id, end.task.seed, *said) < self.config.spot_checks * 2**63

    async def _ask(self, end: State, look: Look | None) -> Verdict | None:
        return (
            None
            if self.judge is None
            else await self.judge.ask(end.task, end.messages, look if self.judge.tools else None)
        )


def component_of(tier: Tier, config: RewardsConfig) -> str:
    """The component that holds what a tier says."""
    return config.rule if tier == "rule" else tier


def deciding_tier(components: Components, config: RewardsConfig) -> Tier | None:
    """The tier whose word is the verdict on an end: the last one that said anything. None where none did."""
    said = [tier for tier in config.tiers if component_of(tier, config) in components]
    return said[-1] if said else None


def judged(verdict: Verdict | None) -> dict[str, float]:
    """The components of a judge's verdict; none where there is none."""
    if verdict is None:
        return {}
    hacked = {} if verdict.hacked is None else {"hacked": float(verdict.hacked)}
    return {"judge": verdict.value} | hacked


def value_of(value: Value | None, end: State) -> Learned:
    """V(s) of an end by a value function; nothing without one, nor of an end that it cannot read."""

    async def estimate() -> float | None:
        if value is None:
            return None
        [found] = await value.estimate([end])
        return None if found.error else found.value

    return estimate

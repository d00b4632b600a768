"""Verdicts on the ends of episodes as rewards: what the judge, the reward model and the cascade have in common."""

from collections.abc import Awaitable, Callable, Sequence

from treeagent.pipeline.rewards import Step

Verdicts = Callable[[Sequence[Step]], Awaitable[Sequence[float | None]]]
"""Gives a verdict on each of some ends, in reward units: 1 for a success, 0 for a failure; None where it has none."""


async def pay_ends(steps: Sequence[Step], weight: float, verdicts: Verdicts) -> list[float | None]:
    """The reward of each step: (1 - w) r, and at an end (1 - w) r + w v, where r is the environment's reward and v the
    verdict. The reward of an end without a verdict is open (None)."""
    ends = [step for step in steps if step.ended]
    found = iter(await verdicts(ends) if ends else ())
    rewards: list[float | None] = []
    for step in steps:
        own = (1 - weight) * step.reward
        verdict = next(found) if step.ended else 0.0
        rewards.append(None if verdict is None else own + weight * verdict)
    return rewards

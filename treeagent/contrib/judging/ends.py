"""Verdicts on the ends of episodes as rewards: what the judge, the reward model and the cascade have in common."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from treeagent.pipeline.rewards import Step
from treeagent.search.node import Tree, finished_paths, reaches

_SUCCESS = 0.5
"""Lowest return by another reward that counts as a success."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict on the end of an episode."""

    value: float
    """In reward units: 1 for a success, 0 for a failure."""
    hacked: bool = False
    """Whether the agent got its reward by a way around the task."""


Verdicts = Callable[[Sequence[Step]], Awaitable[Sequence[Verdict | None]]]
"""Gives a verdict on each of some ends; None where it has none."""


async def pay_ends(steps: Sequence[Step], weight: float, verdicts: Verdicts) -> list[float | None]:
    """The reward of each step: (1 - w) r, and at an end (1 - w) r + w v, where r is the environment's reward and v the
    verdict. A hacked end takes back what the episode was paid before, so that it returns 0. The reward of an end
    without a verdict is open (None)."""
    ends = [step for step in steps if step.ended]
    found = iter(await verdicts(ends) if ends else ())
    rewards: list[float | None] = []
    for step in steps:
        own = (1 - weight) * step.reward
        if not step.ended:
            rewards.append(own)
            continue
        verdict = next(found)
        if verdict is None:
            rewards.append(None)
        else:
            rewards.append(-step.before.paid if verdict.hacked else own + weight * verdict.value)
    return rewards


def agreement(trees: Iterable[Tree]) -> tuple[int, float, int]:
    """Compare success by the reward that search saw with success by the environment, over finished paths: the number
    of ends with both words, the share on which they agree, and the number of ends whose reward is open."""
    agree, unknown = list[bool](), 0
    for path in (path for tree in trees for path in finished_paths(tree) if path[-1].own_reward is not None):
        if path[-1].reward is None:
            unknown += 1
            continue
        paid, own = sum(edge.reward or 0.0 for edge in path), sum(edge.outcome or 0.0 for edge in path)
        agree.append((paid >= _SUCCESS) == reaches(own, 1.0))
    return len(agree), sum(agree) / max(len(agree), 1), unknown

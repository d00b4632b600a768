"""Verdicts on the ends of episodes as rewards: what the judge, the reward model and the cascade have in common."""

from collections.abc import Awaitable, Callable, Iterable, Sequence

from treeagent.pipeline.rewards import Step
from treeagent.search.node import Tree, finished_paths, reaches

_SUCCESS = 0.5
"""Lowest return by another reward that counts as a success."""


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

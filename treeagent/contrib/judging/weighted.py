"""A reward as a weighted sum of parts: what the step itself tells, and what the environment's ``info`` names."""

from collections.abc import Callable, Mapping, Sequence

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from treeagent.pipeline.rewards import Place, Step

PARTS: Mapping[str, Callable[[Step], float]] = {
    "outcome": lambda step: step.reward,
    "steps": lambda step: 1.0,
    "tokens": lambda step: float(len(step.action.token_ids) - len(step.action.forced)),
    "invalid": lambda step: float(step.result.invalid),
}
"""What every step has: the environment's reward, 1, the sampled tokens, and 1 for a malformed or refused call."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class WeightedOptions:
    """Options of the reward "weighted"."""

    weights: dict[str, float]
    """Weight of each part: a name in ``PARTS``, or in ``info["components"]`` of the environment or of the wrapper
    "rubric"."""


class Weighted:
    """The reward "weighted": r = Σ_i w_i c_i over the parts that a step has."""

    options_type = WeightedOptions

    def __init__(self, options: WeightedOptions, place: Place) -> None:
        self.weights = options.weights

    async def score(self, steps: Sequence[Step]) -> Sequence[float | None]:
        parts = map(components, steps)
        return [sum(weight * each.get(name, 0.0) for name, weight in self.weights.items()) for each in parts]


def components(step: Step) -> dict[str, float]:
    """The parts that every step has, and those that ``info["components"]`` names."""
    own, named = {name: part(step) for name, part in PARTS.items()}, step.result.info.get("components")
    return own | named if isinstance(named, dict) else own

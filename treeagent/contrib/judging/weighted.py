"""A reward as a weighted sum of parts: what the step itself tells, and what the environment's ``info`` names."""

import math
from collections.abc import Sequence

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from treeagent.pipeline.rewards import Place, Step
from treeagent.types import UserError


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class WeightedOptions:
    """Options of the reward "weighted"."""

    weights: dict[str, float]
    """Weight of each part: ``outcome`` (the environment's reward), ``steps`` (1), ``tokens`` (sampled tokens),
    ``invalid`` (1 for a malformed or refused call), or a name in ``info["components"]`` of the environment or of the
    wrapper "rubric"."""


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
    named = step.result.info.get("components", {})
    given = dict(named) if isinstance(named, dict) else {}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(f"info['components'] of a step gives {name!r} as {value!r:.80}: give a finite number")
    action = step.action
    return {
        "outcome": step.reward,
        "steps": 1.0,
        "tokens": float(len(action.token_ids) - len(action.forced)),
        "invalid": float(step.result.invalid),
        **given,
    }

"""A reward as a weighted sum of parts: what the step itself tells, what the environment's ``info`` names, your rules,
and other rewards."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent import seams
from treeagent.pipeline.rewards import Place, Reward, Step, make_reward
from treeagent.types import UserError


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class WeightedOptions:
    """Options of the reward "weighted"."""

    weights: dict[str, float]
    """Weight of each part: ``outcome`` (the environment's reward), ``steps`` (1), ``tokens`` (sampled tokens),
    ``invalid`` (1 for a malformed or refused call), a name in ``info["components"]`` of the environment or of the
    wrapper "rubric", or a name of ``rules`` or ``rewards``."""
    rules: dict[str, str] = Field(default_factory=dict)
    """Functions of a Step, by the name of their part, as "module:function". None counts as 0."""
    rewards: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Other rewards, by the name of their part: ``{function = "judge", options = {...}}``."""


class Weighted:
    """The reward "weighted": r = Σ_i w_i c_i over the parts that a step has. Where one of ``rewards`` leaves a step
    open, so is the sum."""

    options_type = WeightedOptions

    def __init__(self, options: WeightedOptions, place: Place) -> None:
        self.weights = options.weights
        self.rules: dict[str, Callable[[Step], float | None]] = {
            name: seams.resolve("rewards.function", path, {}) for name, path in options.rules.items()
        }
        self.rewards: dict[str, Reward] = {
            name: make_reward(place, table.get("function", ""), table.get("options", {}))
            for name, table in options.rewards.items()
        }

    async def score(self, steps: Sequence[Step]) -> Sequence[float | None]:
        parts = [components(step) | _by_rules(self.rules, step) for step in steps]
        is_open = [False] * len(steps)
        for name, reward in self.rewards.items():
            for index, found in enumerate(await reward.score(steps)):
                parts[index][name] = found or 0.0
                is_open[index] |= found is None
        sums = (sum(weight * part.get(name, 0.0) for name, weight in self.weights.items()) for part in parts)
        return [None if unknown else total for unknown, total in zip(is_open, sums, strict=True)]


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


def _by_rules(rules: dict[str, Callable[[Step], float | None]], step: Step) -> dict[str, float]:
    found = {name: rule(step) for name, rule in rules.items()}
    return {name: float(value) for name, value in found.items() if value is not None}

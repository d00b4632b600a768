"""Budgets of costs with Lagrange multipliers (Altman 1999). The reward of a step is (r - Σ_k λ_k c_k) / (1 + Σ_k λ_k)
(Ray et al. 2019); before each round λ <- max(0, λ + η (mean cost - budget))."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent.contrib.judging.weighted import PARTS
from treeagent.pipeline.folder import SEARCHED
from treeagent.pipeline.rewards import Place, Step
from treeagent.search.node import Tree, finished_paths
from treeagent.search.record import from_record
from treeagent.store import read_as, shard_names

Cost = Literal["steps", "tokens", "invalid"]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class BudgetsOptions:
    """Options of the reward "budgets"."""

    budgets: dict[Cost, Annotated[float, Field(ge=0)]]
    """Maximum mean cost of an episode, for each cost: steps, sampled tokens, or malformed and refused calls."""
    rate: Annotated[float, Field(gt=0)] = 0.1
    """Step size η of the multipliers."""


class Budgets:
    """The reward "budgets". The multipliers follow from the trees of the rounds before, so that a run which resumes
    has the same ones."""

    options_type = BudgetsOptions

    def __init__(self, options: BudgetsOptions, place: Place) -> None:
        before = _collections_before(place.run, place.stage) if SEARCHED.fullmatch(place.stage) else []
        trees = (read_as(from_record, place.run / "trees", name) for name in before)
        self.multipliers = multipliers(options, list(map(mean_costs, trees)))

    async def score(self, steps: Sequence[Step]) -> Sequence[float | None]:
        scale = 1.0 + sum(self.multipliers.values())
        return [
            (step.reward - sum(weight * PARTS[name](step) for name, weight in self.multipliers.items())) / scale
            for step in steps
        ]


def multipliers(options: BudgetsOptions, mean_costs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """λ of each cost after one gradient step for each round, from the mean costs of the rounds' episodes."""
    found: dict[str, float] = {name: 0.0 for name in options.budgets}
    for means in mean_costs:
        for name, budget in options.budgets.items():
            found[name] = max(0.0, found[name] + options.rate * (means[name] - budget))
    return found


def mean_costs(trees: Iterable[Tree]) -> dict[str, float]:
    """The mean over finished paths of the sum of each cost; 0 if no path finished."""
    count, sums = 0, Counter[str]()
    for path in (path for tree in trees for path in finished_paths(tree)):
        count += 1
        for edge in path:
            sums["steps"] += not edge.thought
            sums["tokens"] += len(edge.action.token_ids) - len(edge.action.forced)
            sums["invalid"] += edge.child is not None and edge.child.invalid
    return {name: sums[name] / max(count, 1) for name in get_args(Cost)}


def _collections_before(run: Path, stage: str) -> list[str]:
    """The names of the trees that the run searched in the environment in the rounds before a stage, such as
    "collect-3"."""

    def number(name: str) -> int:
        return int(name.rpartition("-")[2]) if "-" in name else 0

    names = [name for name in shard_names(run / "trees") if SEARCHED.fullmatch(name)]
    return sorted((name for name in names if number(name) < number(stage)), key=number)

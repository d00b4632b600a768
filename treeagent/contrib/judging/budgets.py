"""Budgets of costs with Lagrange multipliers (Altman 1999). The reward of a step is (r - Σ_k λ_k c_k) / (1 + Σ_k λ_k)
(Ray et al. 2019); before each round λ <- max(0, λ + η (mean cost - budget))."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent import seams
from treeagent.contrib.judging.weighted import PARTS
from treeagent.pipeline.folder import SEARCHED
from treeagent.pipeline.rewards import Place, Step
from treeagent.search.node import Edge, Tree, finished_paths
from treeagent.search.record import from_record
from treeagent.store import read_as, shard_names
from treeagent.types import Transition

Cost = Callable[[Step], float]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class BudgetsOptions:
    """Options of the reward "budgets"."""

    budgets: dict[str, Annotated[float, Field(ge=0)]]
    """Maximum mean cost of an episode, for each cost: "steps", "tokens", "invalid", or your own function of a Step as
    "module:function". A cost is computed again from stored trees, which hold no ``info``."""
    rate: Annotated[float, Field(gt=0)] = 0.1
    """Step size η of the multipliers."""


class Budgets:
    """The reward "budgets". The multipliers follow from the trees of the rounds before, so that a run which resumes
    has the same ones."""

    options_type = BudgetsOptions

    def __init__(self, options: BudgetsOptions, place: Place) -> None:
        self.costs: dict[str, Cost] = {
            name: PARTS.get(name) or seams.resolve("rewards.function", name, {}) for name in options.budgets
        }
        before = _collections_before(place.run, place.stage) if SEARCHED.fullmatch(place.stage) else []
        trees = (read_as(from_record, place.run / "trees", name) for name in before)
        self.multipliers = multipliers(options, [mean_costs(each, self.costs) for each in trees])

    async def score(self, steps: Sequence[Step]) -> Sequence[float | None]:
        scale = 1.0 + sum(self.multipliers.values())
        return [
            (step.reward - sum(weight * self.costs[name](step) for name, weight in self.multipliers.items())) / scale
            for step in steps
        ]


def multipliers(options: BudgetsOptions, mean_costs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """λ of each cost after one gradient step for each round, from the mean costs of the rounds' episodes."""
    found = dict.fromkeys(options.budgets, 0.0)
    for means in mean_costs:
        for name, budget in options.budgets.items():
            found[name] = max(0.0, found[name] + options.rate * (means[name] - budget))
    return found


def mean_costs(trees: Iterable[Tree], costs: Mapping[str, Cost]) -> dict[str, float]:
    """The mean over finished paths of the sum of each cost; 0 if no path finished."""
    count, sums = 0, dict.fromkeys(costs, 0.0)
    for tree in trees:
        for path in finished_paths(tree):
            count += 1
            for index, edge in enumerate(path):
                if not edge.thought:
                    step = stored_step(tree, path[: index + 1])
                    for name, cost in costs.items():
                        sums[name] += cost(step)
    return {name: total / max(count, 1) for name, total in sums.items()}


def stored_step(tree: Tree, path: Sequence[Edge]) -> Step:
    """The last step of a path of a stored tree, as the reward saw it when the tree grew, but for ``info``."""
    *before, edge = path
    action = edge.action
    start = before[-1].child if before else tree.root
    if before and before[-1].thought:  # the turn began with a thought that has an edge of its own
        action = action.after(before[-1].action)
        start = before[-2].child if len(before) > 1 else tree.root
    child = edge.child
    assert child is not None and start is not None
    arrived = Transition(
        child.state, edge.outcome, terminated=child.terminated, truncated=child.truncated, invalid=child.invalid
    )
    return Step(start.state, action, arrived)


def _collections_before(run: Path, stage: str) -> list[str]:
    """The names of the trees that the run searched in the environment in the rounds before a stage, such as
    "collect-3"."""

    def number(name: str) -> int:
        return int(name.rpartition("-")[2]) if "-" in name else 0

    names = [name for name in shard_names(run / "trees") if SEARCHED.fullmatch(name)]
    return sorted((name for name in names if number(name) < number(stage)), key=number)

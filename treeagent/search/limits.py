"""The limits at which the search of one task stops. They are the same for every method, so that methods compare
fairly."""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from treeagent.search.node import Budget


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Limits:
    """What one tree may spend. The search stops at the first limit it reaches; None sets no limit.

    Simulations in flight are finished. Steps, tokens and seconds may therefore exceed their limit by the cost of one
    batch of ``leaves`` simulations.
    """

    simulations: Annotated[int, Field(gt=0, le=10**7)] | None = None
    """Maximum number of simulations in a tree. An episode of best-of-N, a step of a beam and a candidate examined by
    lookahead count as one simulation each. If a run sets none of the four limits, this is 16."""
    environment_steps: Annotated[int, Field(gt=0, le=10**9)] | None = None
    """Maximum number of environment steps in a tree, including replayed steps. The same number applies separately to
    steps of a world model."""
    generated_tokens: Annotated[int, Field(gt=0, le=10**12)] | None = None
    """Maximum number of sampled tokens in all candidates of a tree and in the rollouts that estimate V(s)."""
    seconds: Annotated[float, Field(gt=0)] | None = None
    """Maximum wall time of a tree, in seconds; the trees of a batch share its time equally. Trees under this limit are
    not reproducible."""

    @model_validator(mode="after")
    def _some_limit(self) -> Self:
        if not any((self.simulations, self.environment_steps, self.generated_tokens, self.seconds)):
            raise ValueError("no limit is set: set simulations, environment_steps, generated_tokens or seconds")
        return self

    def reached(self, budget: Budget) -> bool:
        """Whether a tree that has spent this budget may start no further simulation."""
        return self.share(budget) >= 1

    def share(self, budget: Budget, in_flight: int = 0) -> float:
        """The share of the limits that a tree has spent, by the limit that it will reach first. At 1 or above, no
        simulation starts. Simulations ``in_flight`` are assumed to cost as much as the average of those before them."""
        started = budget.simulations + in_flight
        scale = started / budget.simulations if budget.simulations else 1.0
        return max(
            used / limit
            for limit, used in (
                (self.simulations, started),
                (self.environment_steps, budget.environment_steps * scale),
                (self.environment_steps, budget.imagined_steps * scale),
                (self.generated_tokens, budget.generated_tokens * scale),
                (self.seconds, budget.seconds * scale),
            )
            if limit is not None
        )

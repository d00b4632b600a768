"""The limits at which the search of one task stops. Every method keeps the same limits, so that they compare fairly."""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from treeagent.search.node import Budget


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Limits:
    """What one tree may spend. The search stops at the first limit it reaches; None sets no limit.

    Simulations in flight are finished. Steps, tokens and seconds may therefore exceed their limit by what one batch of
    ``leaves`` simulations spends.
    """

    simulations: Annotated[int, Field(gt=0, le=10**7)] | None = None
    """A tree gets at most this many simulations; an episode of best-of-N, a step of a beam and a candidate examined by
    lookahead count as one each."""
    environment_steps: Annotated[int, Field(gt=0, le=10**9)] | None = None
    """A tree takes at most this many steps of the environment, replayed steps included, and as many of a world
    model."""
    generated_tokens: Annotated[int, Field(gt=0, le=10**12)] | None = None
    """The candidates of a tree have at most this many sampled tokens in all."""
    seconds: Annotated[float, Field(gt=0)] | None = None
    """A tree takes at most this many seconds of wall time; trees of a batch share its time equally. Such trees are not
    reproducible."""

    @model_validator(mode="after")
    def _some_limit(self) -> Self:
        if not any((self.simulations, self.environment_steps, self.generated_tokens, self.seconds)):
            raise ValueError("no limit is set: set simulations, environment_steps, generated_tokens or seconds")
        return self

    def reached(self, spent: Budget) -> bool:
        """Whether a tree that has spent this budget may start no further simulation."""
        return self.share(spent) >= 1

    def share(self, spent: Budget, in_flight: int = 0) -> float:
        """The share of the limits that a tree has spent, by the limit that it will reach first; from 1 on, no
        simulation starts. Simulations ``in_flight`` are taken to cost what those before them cost on average."""
        started = spent.simulations + in_flight
        scale = started / spent.simulations if spent.simulations else 1.0
        return max(
            used / limit
            for limit, used in (
                (self.simulations, started),
                (self.environment_steps, spent.environment_steps * scale),
                (self.environment_steps, spent.imagined_steps * scale),
                (self.generated_tokens, spent.generated_tokens * scale),
                (self.seconds, spent.seconds * scale),
            )
            if limit is not None
        )

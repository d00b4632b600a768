"""Where the search of one task stops. Every way of searching keeps to the same limits, so that they can be compared."""

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from treeagent.search.node import Budget


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Limits:
    """What a tree may spend; it stops at whichever comes first. None sets no limit.

    Simulations under way are finished, so that steps, tokens and seconds may be exceeded by those of one batch: of as
    many simulations as a tree has in flight at once.
    """

    simulations: Annotated[int, Field(gt=0)] | None = None
    """Simulations; a chain of best-of-N, a step of a beam and a candidate looked through by
    lookahead count as one."""
    environment_steps: Annotated[int, Field(gt=0)] | None = None
    """Steps of the environment, replayed ones included."""
    imagined_steps: Annotated[int, Field(gt=0)] | None = None
    """Steps of a world model; none takes ``environment_steps`` for it, so that a tree grows as large in imagination."""
    generated_tokens: Annotated[int, Field(gt=0)] | None = None
    """Sampled tokens of all candidates."""
    seconds: Annotated[float, Field(gt=0)] | None = None
    """Wall time; a batch's is shared equally among its trees. Trees under this limit are not reproducible."""

    @model_validator(mode="after")
    def _some_limit(self) -> Self:
        if not any((self.simulations, self.environment_steps, self.generated_tokens, self.seconds)):
            raise ValueError(
                "no limit is set that ends every search: set simulations, environment_steps, generated_tokens or "
                "seconds"
            )
        return self

    def reached(self, spent: Budget) -> bool:
        """Whether a tree that has spent so much starts no other simulation."""
        return any(
            limit is not None and used >= limit
            for limit, used in (
                (self.simulations, spent.simulations),
                (self.environment_steps, spent.environment_steps),
                (self.imagined_steps or self.environment_steps, spent.imagined_steps),
                (self.generated_tokens, spent.generated_tokens),
                (self.seconds, spent.seconds),
            )
        )

"""When the search of one task stops: at a limit, or at an end that is good enough. The same for every method, so that
methods compare fairly."""

from dataclasses import dataclass as plain_dataclass
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

    def share(self, budget: Budget, in_flight: int = 0) -> float:
        """The share of the limits that a tree has spent, by the limit that it will reach first. At 1 or above, no
        simulation starts. Simulations ``in_flight`` are assumed to cost as much as the average of those before them."""
        started = budget.simulations + in_flight
        spent = 0.0 if self.simulations is None else started / self.simulations
        scale = started / budget.simulations if in_flight and budget.simulations else 1.0
        if self.environment_steps is not None:
            spent = max(spent, scale * max(budget.environment_steps, budget.imagined_steps) / self.environment_steps)
        if self.generated_tokens is not None:
            spent = max(spent, scale * budget.generated_tokens / self.generated_tokens)
        if self.seconds is not None:
            spent = max(spent, scale * budget.seconds / self.seconds)
        return spent


@plain_dataclass(frozen=True, slots=True)
class Enough:
    """When a search whose decision is "leaf" ends before its limits.

    The best end so far is the one with the greatest G + λ ℓ, where ℓ is the ``mean_logprob`` of its path. G_max is the
    greatest return that an episode can have. Ends at a limit of the environment do not count, because every end of the
    task ranks above them.
    """

    lowest: float
    highest: float
    """The range of the returns of an episode, in reward units; ``highest`` is G_max."""
    likelihood_weight: float = 0.0
    """λ, as in ``decide.best_path``."""
    least_gain: float = 0.0
    """Lowest expected gain for which a search goes on, in reward units."""

    def gains_too_little(self, best: float, share: float) -> bool:
        """Whether the rest of the limits is expected to gain less than ``least_gain``.

        Suppose that the best of all ends is equally likely to be found at any time. Then the rest of the limits finds
        it with probability 1 - s, where s is the share of the limits that is spent. It gains at most the difference
        between G_max and the best end so far. So the search ends when

            (1 - s) (G_max - max_{ends} (G + λ ℓ)) < least_gain

        Args:
            best: max (G + λ ℓ) of the ends so far; -∞ if there is none.
            share: s, less than 1.
        """
        return (1 - share) * max(self.highest - best, 0.0) < self.least_gain  # V may exceed G_max

    def is_good(self, best: float) -> bool:
        """Whether the best end is nearer to G_max than to a ``failure``. A search with a good end that has explored all
        likely calls does not try unlikely ones (``growth.reopen``), because these hardly ever lead to a better end."""
        return best > (self.failure + self.highest) / 2

    @property
    def failure(self) -> float:
        """The return of a failure: 0 if that is between ``lowest`` and G_max, otherwise ``lowest``."""
        return 0.0 if self.lowest <= 0.0 < self.highest else self.lowest

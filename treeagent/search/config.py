"""The settings of a search. One class serves every method, so that methods can be compared on equal terms."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from treeagent.seams import known
from treeagent.search.node import Budget
from treeagent.types import REACHES_OUT

METHODS: Mapping[str, str] = {
    "mcts": "treeagent.search.mcts:Search",
    "gumbel": "treeagent.search.mcts:GumbelSearch",
    "best_of_n": "treeagent.search.baselines:BestOfN",
    "beam": "treeagent.search.baselines:Beam",
    "best_first": "treeagent.search.baselines:BestFirst",
}
"""The core's search methods."""


Method = Annotated[str, AfterValidator(lambda name: known("search.method", name, METHODS))]
"""The name of a search method, or ``"module:Name"``."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Limits:
    """What one tree may spend. The search stops at the first limit it reaches; None sets no limit.

    Simulations in flight are finished, so a limit may be exceeded by the cost of one batch of ``leaves`` simulations.
    """

    simulations: Annotated[int, Field(gt=0, le=10**7)] | None = None
    """Maximum number of simulations in a tree. An episode of best-of-N, a step of a beam and a candidate examined by
    lookahead count as one simulation each. If a run sets none of the four limits, this is 16."""
    environment_steps: Annotated[int, Field(gt=0, le=10**9)] | None = None
    """Maximum number of environment steps in a tree, including replayed steps. The same number applies separately to
    steps of a world model."""
    generated_tokens: Annotated[int, Field(gt=0, le=10**12)] | None = None
    """Maximum number of sampled tokens in all candidates of a tree."""
    seconds: Annotated[float, Field(gt=0)] | None = None
    """Maximum wall time of a tree, in seconds; the trees of a batch share its time equally. Trees under this limit are
    not reproducible."""

    @model_validator(mode="after")
    def _some_limit(self) -> Self:
        if not any((self.simulations, self.environment_steps, self.generated_tokens, self.seconds)):
            raise ValueError("no limit is set: set simulations, environment_steps, generated_tokens or seconds")
        return self

    def share(self, budget: Budget, in_flight: int = 0) -> float:
        """The share of the limits that a tree has spent, by the limit that it will reach first. Simulations
        ``in_flight`` are assumed to cost as much as the average of those before them."""
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


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class SearchConfig:
    """The settings for growing a tree."""

    limits: Limits = Field(default_factory=lambda: Limits(simulations=16))
    """The search of a task stops at the first of these limits."""
    method: Annotated[Method, REACHES_OUT] = "mcts"
    """The search method: Monte Carlo tree search with PUCT ("mcts") or with Gumbel selection ("gumbel"), the baselines
    "best_of_n", "beam" and "best_first", one that ``treeagent.contrib`` adds, or your own as ``"module:Name"``."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The method's own settings."""
    candidates: Annotated[int, Field(gt=0, le=10**4)] = 4
    """The policy samples this many actions (K) at each expanded state, unless MCTS samples them one after another.
    Equal calls among them become one edge."""
    granularity: Literal["step", "split"] = "step"
    """What an edge of the tree is: a whole think/action step ("step"), or a thought and an action as one edge each
    ("split")."""
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Discount factor γ for each step."""
    leaves: Annotated[int, Field(gt=0, le=10**4)] = 1
    """Number of simulations that each tree runs in parallel."""
    prune_repeats: bool = False
    """Does not grow a tree beyond a step that leads back to an earlier state of its path, by ``Env.state_key``, and
    counts the step as a failure. Use it where steps can be undone, as in mazes. Do not use it where the agent must look
    something up, which leaves the environment in the same state. Whole chains, as in best-of-N, are not affected."""

    def by(self, method: str) -> "SearchConfig":
        """The settings for a search by ``method``; the options of another method do not count."""
        return self if method == self.method else replace(self, method=method, options={})

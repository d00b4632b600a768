"""The settings of a search. One class serves every method, so that methods can be compared on equal terms."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent.seams import names
from treeagent.search.limits import Limits
from treeagent.types import REACHES_OUT

METHODS: Mapping[str, str] = {
    "mcts": "treeagent.search.mcts:Search",
    "gumbel": "treeagent.search.mcts:GumbelSearch",
    "best_of_n": "treeagent.search.baselines:BestOfN",
    "beam": "treeagent.search.baselines:Beam",
    "best_first": "treeagent.search.baselines:BestFirst",
}
"""The core's search methods."""


def _known(method: str) -> str:
    if ":" not in method and method not in (known := names("search.method", METHODS)):
        raise ValueError(f"there is no search method {method!r}: use one of {sorted(known)} or your own module:Name")
    return method


Method = Annotated[str, AfterValidator(_known)]
"""The name of a search method, or ``"module:Name"``."""


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
    """The policy samples this many actions (K) at each expanded state, unless ``widening`` samples them one after
    another. Equal calls among them become one edge."""
    granularity: Literal["step", "split"] = "step"
    """What an edge of the tree is: a whole think/action step ("step"), or a thought and an action as one edge each
    ("split")."""
    c_init: Annotated[float, Field(ge=0)] = 1.0
    """PUCT multiplies its exploration term by this constant, and by less in trees that are deep relative to their
    limits (``puct.exploration_at_depth``)."""
    widening: Annotated[int, Field(ge=0, le=10**4)] = 1
    """MCTS samples this many candidates at a time, and samples more where that scores better than the actions that a
    state has. At 0, a state gets ``candidates`` when it is expanded and no more, as under the baselines."""
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Discount factor γ for each step."""
    bootstrap: bool = False
    """Whether the limits of the environment are outside the task, so that the task would go on beyond them. If true, a
    path that such a limit cuts off is worth its rewards plus V(s) of its end. If false, the limit is the task's own,
    and the path is worth its rewards alone."""
    rollout_weight: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of rollouts to the end of the episode in V(s); the value head makes up the rest."""
    estimate_all: bool = False
    """Makes every method estimate V(s) of every state. Without it, best-of-N estimates only ends, and all methods
    except MCTS leave out the root."""
    leaves: Annotated[int, Field(gt=0, le=10**4)] = 1
    """Number of simulations that each tree runs in parallel."""
    prune_repeats: bool = False
    """Does not grow a tree beyond a step that leads back to an earlier state of its path, by ``Env.state_key``, and
    counts the step as a failure. Use it where steps can be undone and search would walk in circles, as in mazes and
    puzzles. Do not use it where the agent must look something up, such as a recipe: that leaves the environment in the
    same state, and is pruned. Whole chains, as in best-of-N, are not affected, and imagined states have no keys."""
    step_seconds: Annotated[float, Field(gt=0)] | None = None
    """Timeout of one environment step, in seconds. A step that takes longer fails, and the tree stores the reason. A
    step that blocks its thread can be abandoned only if ``environment.parallel`` is above 1."""

    def by(self, method: str) -> "SearchConfig":
        """The settings for a search by ``method``; the options of another method do not count."""
        return self if method == self.method else replace(self, method=method, options={})

"""The settings of a search. One class serves every method, so that methods can be compared on equal terms.

The settings at the top are those shared by all methods, and those of Monte Carlo tree search with PUCT, the default
method. Settings that only one of the other methods reads are in a table named after it.
"""

import math
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from treeagent.search.limits import Limits

SearchMethod = Literal[
    "mcts", "best_of_n", "beam", "best_first", "random_expand", "entropy_expand", "lookahead", "ab_mcts", "rebase"
]
Selection = Literal["puct", "uct", "gumbel"]

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_STRICT)
class GumbelConfig:
    """Settings of Gumbel selection (Danihelka et al. 2022)."""

    considered: Annotated[int, Field(gt=0)] = 16
    """Sequential halving at the root starts with at most this many actions (m)."""


@dataclass(frozen=True, config=_STRICT)
class BeamConfig:
    """Settings of beam search."""

    width: Annotated[int, Field(gt=0)] = 4
    """Beam search keeps this many states at each depth."""


@dataclass(frozen=True, config=_STRICT)
class ChainsConfig:
    """Settings of random expansion (Tree-GRPO, Ji et al. 2025) and of entropy expansion (TreeRL, Hou et al. 2025)."""

    initial: Annotated[int, Field(gt=0)] = 2
    """Random and entropy expansion start with this many chains (M), each a whole episode from the root."""
    expansions: Annotated[int, Field(gt=0)] = 2
    """In each round, every initial chain together with its branches is continued from this many of its states (N), to
    the end of the episode."""


@dataclass(frozen=True, config=_STRICT)
class LookaheadConfig:
    """Settings of lookahead, which plans again after every action (model predictive control)."""

    depth: Annotated[int, Field(gt=0)] = 2
    """Lookahead examines paths of this many steps, including the action to be taken."""


@dataclass(frozen=True, config=_STRICT)
class ABMCTSConfig:
    """Settings of AB-MCTS (Inoue et al. 2025)."""

    posterior: Literal["gaussian", "beta"] = "gaussian"
    """AB-MCTS assumes that returns are normally distributed ("gaussian"), or Beta distributed between the lowest and
    the highest return ("beta")."""


@dataclass(frozen=True, config=_STRICT)
class RebaseConfig:
    """Settings of REBASE (Wu et al. 2024)."""

    width: Annotated[int, Field(gt=0)] = 16
    """REBASE samples this many candidates (B) at each depth, minus one for each episode that has ended. It goes down
    the tree once. If B candidates per step exceed the limits before an episode ends, it finishes none."""
    temperature: Annotated[float, Field(gt=0)] = 0.2
    """REBASE divides the candidates of a depth among its states by a softmax over V(s) with this temperature (T), in
    reward units."""


@dataclass(frozen=True, config=_STRICT)
class SearchConfig:
    """The settings for growing a tree."""

    limits: Limits = Field(default_factory=lambda: Limits(simulations=16))
    """The search of a task stops at the first of these limits."""
    candidates: Annotated[int, Field(gt=0, le=10**4)] = 4
    """The policy samples this many actions (K) at each expanded state, unless ``widening`` samples them one after
    another. Equal calls among them become one edge."""
    method: SearchMethod = "mcts"
    """The search method: Monte Carlo tree search ("mcts") or one of the baselines."""
    granularity: Literal["step", "split"] = "step"
    """What an edge of the tree is: a whole think/action step ("step"), or a thought and an action as one edge each
    ("split")."""
    selection: Selection = "puct"
    """How MCTS descends: by PUCT (AlphaZero, with priors), by UCT (without priors) or by Gumbel selection."""
    c_init: Annotated[float, Field(ge=0)] = 1.0
    """PUCT and UCT multiply their exploration term by this constant."""
    c_by_depth: bool = True
    """Reduces the exploration of PUCT in trees that are deep relative to their limits (``puct.exploration_at_depth``).
    If false, ``c_init`` is the same for every tree, as in AlphaZero."""
    value_range: tuple[float, float] | None = None
    """The lowest and highest return by which PUCT, UCT and AB-MCTS normalise returns. Unset uses those seen in the tree
    so far (MuZero)."""
    widening: Annotated[int, Field(ge=0, le=10**4)] = 1
    """PUCT and Gumbel selection sample this many candidates at a time, and sample more where that scores better than
    the actions that a state has. At 0, a state gets ``candidates`` when it is expanded and no more, as under UCT and
    the other methods. AB-MCTS also samples this many at a time, or ``candidates`` if it is 0."""
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Discount factor γ for each step."""
    bootstrap: bool = False
    """Whether the limits of the environment are outside the task, so that the task would go on beyond them. If true, a
    path that such a limit cuts off is worth its rewards plus V(s) of its end. If false, the limit is the task's own,
    and the path is worth its rewards alone."""
    rollout_weight: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of rollouts to the end of the episode in V(s); the value head makes up the rest."""
    estimate_all: bool = False
    """Makes every method estimate V(s) of every state. Without it, best-of-N and random and entropy expansion estimate
    only ends, and all methods except MCTS leave out the root."""
    leaves: Annotated[int, Field(gt=0, le=10**4)] = 1
    """Number of simulations that each tree runs in parallel."""
    skip_exhausted: bool = True
    """MCTS does not revisit a subtree that it has fully explored. When the whole tree is explored, it stops if it
    has found a good end (``stopping.Enough``). Else it samples further candidates where the policy has unlikely ones
    left, and stops when it has none. AB-MCTS always does so."""
    prune_invalid: bool = True
    """Does not grow a tree beyond a malformed or refused call, which leaves the environment unchanged."""
    prune_repeats: bool = False
    """Does not grow a tree beyond a step that leads back to an earlier state of its path, by ``Env.state_key``, and
    counts the step as a failure. Use it where steps can be undone and search would walk in circles, as in mazes and
    puzzles. Do not use it where the agent must look something up, such as a recipe: that leaves the environment in the
    same state, and is pruned. Lookahead and whole chains, as in best-of-N, are not affected, and imagined states have
    no keys."""
    stop_at_return: float | None = None
    """The search of a task stops when a finished path has at least this return, in reward units."""
    step_seconds: Annotated[float, Field(gt=0)] | None = None
    """Timeout of one environment step, in seconds. A step that takes longer fails, and the tree stores the reason. A
    step that blocks its thread can be abandoned only if ``environment.parallel`` is above 1."""
    gumbel: GumbelConfig = Field(default_factory=GumbelConfig)
    """Gumbel selection reads this table."""
    beam: BeamConfig = Field(default_factory=BeamConfig)
    """Beam search reads this table."""
    chains: ChainsConfig = Field(default_factory=ChainsConfig)
    """Random and entropy expansion read this table."""
    lookahead: LookaheadConfig = Field(default_factory=LookaheadConfig)
    """Lookahead reads this table."""
    ab_mcts: ABMCTSConfig = Field(default_factory=ABMCTSConfig)
    """AB-MCTS reads this table."""
    rebase: RebaseConfig = Field(default_factory=RebaseConfig)
    """REBASE reads this table."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.limits.simulations is None and not self.skip_exhausted:
            raise ValueError(
                "limits.simulations is not set, and without skip_exhausted the search might never end: set "
                "limits.simulations"
            )
        if self.value_range is not None and not -math.inf < self.value_range[0] < self.value_range[1] < math.inf:
            raise ValueError(f"value_range {self.value_range} is no range: give its least value, then its greatest")
        return self

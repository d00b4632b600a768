"""The settings of a search. One class serves every method, so that methods can be compared on equal terms.

Settings that all methods share, and those of Monte Carlo tree search with PUCT, the default method, stand at the top.
What only one of the other methods reads stands in a table with its name.
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
    """Sequential halving at the root starts from at most this many actions (m)."""


@dataclass(frozen=True, config=_STRICT)
class BeamConfig:
    """Settings of beam search."""

    width: Annotated[int, Field(gt=0)] = 4
    """Beam search keeps this many states at each depth."""


@dataclass(frozen=True, config=_STRICT)
class ChainsConfig:
    """Settings of random expansion (Tree-GRPO, Ji et al. 2025) and of entropy expansion (TreeRL, Hou et al. 2025)."""

    initial: Annotated[int, Field(gt=0)] = 2
    """Random and entropy expansion begin with this many chains (M), each a whole episode from the root."""
    expansions: Annotated[int, Field(gt=0)] = 2
    """Each round continues this many states (N) of every initial chain and its branches to the end of the episode."""


@dataclass(frozen=True, config=_STRICT)
class LookaheadConfig:
    """Settings of lookahead, which plans anew after every action (model predictive control)."""

    depth: Annotated[int, Field(gt=0)] = 2
    """Lookahead examines paths of this many steps, the action to be taken included."""


@dataclass(frozen=True, config=_STRICT)
class ABMCTSConfig:
    """Settings of AB-MCTS (Inoue et al. 2025)."""

    posterior: Literal["gaussian", "beta"] = "gaussian"
    """AB-MCTS takes returns to be normally distributed, or Beta distributed between the least and the greatest."""


@dataclass(frozen=True, config=_STRICT)
class RebaseConfig:
    """Settings of REBASE (Wu et al. 2024)."""

    width: Annotated[int, Field(gt=0)] = 16
    """REBASE samples this many candidates (B) at each depth, less one for each episode that has ended. It goes down
    once, and finishes no episode where B candidates a step exceed the limits."""
    temperature: Annotated[float, Field(gt=0)] = 0.2
    """REBASE divides the candidates of a depth by a softmax over V(s) with this temperature (T), in reward units."""


@dataclass(frozen=True, config=_STRICT)
class SearchConfig:
    """The settings by which a tree is grown."""

    limits: Limits = Field(default_factory=lambda: Limits(simulations=16))
    """The search of a task stops at the first of these limits."""
    candidates: Annotated[int, Field(gt=0, le=10**4)] = 4
    """The policy samples this many actions (K) at each expanded state, unless ``widening`` samples them one after
    another; equal calls among them become one edge."""
    method: SearchMethod = "mcts"
    """Trees are grown by Monte Carlo tree search or by one of the baselines."""
    granularity: Literal["step", "split"] = "step"
    """An edge is a whole think/action step ("step"), or thought and action are an edge each ("split")."""
    selection: Selection = "puct"
    """MCTS descends by PUCT (AlphaZero, with priors), by UCT (without priors) or by Gumbel selection."""
    c_init: Annotated[float, Field(ge=0)] = 1.0
    """PUCT and UCT multiply their exploration term by this constant."""
    c_by_depth: bool = True
    """PUCT explores less where the tree is deep for its limits (``puct.exploration_at_depth``). If false, ``c_init`` is
    the same for every tree, as in AlphaZero."""
    value_range: tuple[float, float] | None = None
    """PUCT, UCT and AB-MCTS normalise returns by this least and greatest one; unset, by those seen in the tree so far
    (MuZero)."""
    widening: Annotated[int, Field(ge=0, le=10**4)] = 1
    """PUCT and Gumbel selection sample so many candidates at a time, and sample further ones where they prefer that to
    the actions that a state has. At 0 a state gets ``candidates`` at its first visit and no more, as under UCT and the
    other methods. AB-MCTS samples so many at a time, too, or ``candidates`` at 0."""
    root_noise: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The priors at the root are mixed with this share of Dirichlet noise; evaluation adds none."""
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0
    """A reward one step later is worth this factor (γ)."""
    bootstrap: bool = False
    """If true, a path that a limit of the environment cuts off is worth V(s) of its end beside what it was paid,
    because the task would go on. If false, the limit is the task's own, and such a path is worth what it was paid."""
    process_weight: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Process rewards make up this share (η) of a return, and the outcome's reward the rest."""
    critic_weight: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The critic's score makes up this share of an action's Q (Agent Q, equation 10); at 0 no critic is called."""
    learned_weight: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The reward model of ``rewards.learned`` makes up this share of V(s), and the value head, or 0 without one, the
    rest; its audit limits it."""
    rollout_weight: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Rollouts to the end of the episode make up this share of V(s), and the value head the rest."""
    estimate_all: bool = False
    """Methods other than MCTS estimate V(s) of every state instead of leaves only."""
    leaves: Annotated[int, Field(gt=0, le=10**4)] = 1
    """Each tree has this many simulations in flight at once."""
    skip_exhausted: bool = True
    """MCTS does not revisit a subtree that it has explored completely, and stops when the whole tree is explored."""
    prune_invalid: bool = True
    """A tree does not grow beyond a malformed or refused call, which leaves the environment where it was."""
    stop_when_decided: bool = False
    """MCTS stops when the simulations left cannot change which action at the root is visited most."""
    stop_at_return: float | None = None
    """The search of a task stops when a finished path has at least this return, in reward units."""
    step_seconds: Annotated[float, Field(gt=0)] | None = None
    """A step of the environment that takes more than this many seconds fails, and the tree keeps the reason. One that
    blocks its thread can be given up only where ``environment.parallel`` is above 1."""
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
        if self.limits.simulations is None and self.stop_when_decided:
            raise ValueError("limits.simulations is not set, but stop_when_decided plans by it: set limits.simulations")
        if self.value_range is not None and not -math.inf < self.value_range[0] < self.value_range[1] < math.inf:
            raise ValueError(f"value_range {self.value_range} is no range: give its least value, then its greatest")
        return self

"""How a task is searched: one set of settings for every method, so that methods are compared on equal terms."""

import math
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from treeagent.search.limits import Limits

SearchMethod = Literal["mcts", "best_of_n", "beam", "best_first", "random_expand", "lookahead"]
Selection = Literal["puct", "uct", "gumbel"]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class SearchConfig:
    """How a tree is grown."""

    limits: Limits = Field(default_factory=lambda: Limits(simulations=16))
    """Where it stops."""
    candidates: Annotated[int, Field(gt=0)] = 4
    """K, actions drawn at each expanded state, duplicates included."""
    method: SearchMethod = "mcts"
    """Monte Carlo tree search or one of the baselines, which read limits, candidates, priors, merging, returns,
    ``leaves``, ``prune_invalid`` and the stop at a return as it does, and what is theirs by its description."""
    granularity: Literal["step", "split"] = "step"
    """A node is a whole think/action step, or think and action are a node each."""
    selection: Selection = "puct"
    """Selection rule: AlphaZero's, with priors; Agent Q's UCT, without; or Gumbel's, by sequential halving at the
    root and by the improved policy below it."""
    c_init: Annotated[float, Field(ge=0)] = 1.25
    """PUCT's c_init; UCT's constant c."""
    c_base: Annotated[float, Field(gt=0)] = 19652.0
    """PUCT's c_base."""
    first_play_reduction: Annotated[float, Field(ge=0)] = 0.1
    """How much less than its siblings an untried edge is thought to be worth, in normalised Q."""
    value_range: tuple[float, float] | None = None
    """Least and greatest return, to which Q is normalised; by default those seen in the tree (MuZero)."""
    gumbel_considered: Annotated[int, Field(gt=0)] = 16
    """Most actions that Gumbel's sequential halving starts from at the root."""
    gumbel_scale: Annotated[float, Field(ge=0)] = 1.0
    """Scale of the Gumbel noise; 0 makes the root greedy, as evaluation does."""
    gumbel_visit_offset: Annotated[float, Field(ge=0)] = 50.0
    """c_visit of σ(q) = (c_visit + max_b N(b)) c_scale q."""
    gumbel_value_scale: Annotated[float, Field(gt=0)] = 0.1
    """c_scale of the same."""
    prior_temperature: Annotated[float, Field(gt=0)] = 1.0
    """Temperature of the softmax over siblings."""
    length_power: Annotated[float, Field(ge=0, le=2)] = 1.0
    """Log-probabilities are divided by tokens^this before the softmax."""
    merge: Literal["text", "call"] = "call"
    """Siblings that make the same call are one edge, or only those of equal text."""
    widening: tuple[float, float] | None = None
    """(C, α) of progressive widening: a state visited N times holds C N^α drawn candidates, ``candidates`` of them
    at first (Couëtoux et al. 2011); None draws no more than those, nor does sequential halving at the root."""
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0
    """γ, per step."""
    process_weight: Annotated[float, Field(ge=0, le=1)] = 0.0
    """η: returns are (1 - η) of the outcome's and η of the process rewards'."""
    critic_weight: Annotated[float, Field(ge=0, le=1)] = 0.0
    """1 - α of Q = α Q_search + (1 - α) Q_critic (Agent Q, equation 10); 0 asks no critic."""
    rollout_weight: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of rollouts to the end of the episode in V(s), beside the value head's."""
    root_noise: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Weight of Dirichlet noise in the root's priors; for training only."""
    root_noise_alpha: Annotated[float, Field(gt=0)] = 0.3
    """Concentration of that noise."""
    leaves: Annotated[int, Field(gt=0)] = 1
    """Simulations of one tree in flight at once."""
    in_flight: Literal["wu_uct", "virtual_loss"] = "wu_uct"
    """How simulations in flight are kept apart: counted as visits only (Liu et al. 2020), or as losses too."""
    transpositions: Literal["off", "value", "statistics"] = "off"
    """What a state equal to one seen before in its tree takes from it: nothing, V(s), or what search has made of it."""
    skip_exhausted: bool = True
    """Do not revisit subtrees in which nothing new can be found (a deterministic dynamics gives nothing new there);
    a tree whose root is exhausted stops early."""
    prune_invalid: bool = True
    """Do not grow beyond a malformed or refused call, which leaves the environment where it was."""
    stop_when_decided: bool = False
    """Stop when the remaining simulations could not change which action at the root is visited most."""
    stop_at_return: float | None = None
    """Stop when a finished path returns so much."""
    beam_width: Annotated[int, Field(gt=0)] = 4
    """B, states that beam search keeps at each depth."""
    estimate_all: bool = False
    """For methods other than MCTS, which asks anyway: V(s) of every state, those on the way to a leaf as well."""
    initial_chains: Annotated[int, Field(gt=0)] = 2
    """M, chains that random expansion begins with."""
    expansions: Annotated[int, Field(gt=0)] = 2
    """N, states of each of them that a round of random expansion continues anew; ``limits`` end the rounds."""
    lookahead_depth: Annotated[int, Field(gt=0)] = 2
    """Steps that lookahead sees ahead, the action to be taken included."""
    step_seconds: Annotated[float, Field(gt=0)] | None = None
    """Wall time after which a step of a dynamics that waits (a server, a worker) is given up; the tree keeps why."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.limits.simulations is None and (self.widening is not None or not self.skip_exhausted):
            raise ValueError(
                "limits.simulations is not set, and with widening or without skip_exhausted no tree is ever exhausted: "
                "set it, or the search might never end"
            )
        if self.limits.simulations is None and (self.selection == "gumbel" or self.stop_when_decided):
            raise ValueError("limits.simulations is not set, but sequential halving and stop_when_decided divide it")
        if self.value_range is not None and not -math.inf < self.value_range[0] < self.value_range[1] < math.inf:
            raise ValueError(f"value_range {self.value_range} is no range: give its least value, then its greatest")
        if self.widening is not None and not (self.widening[0] > 0 and 0 < self.widening[1] < 1):
            raise ValueError(f"widening {self.widening} must be (C > 0, α between 0 and 1)")
        return self

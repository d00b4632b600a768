"""The policy that a search arrived at, over the candidates of each state: the target of policy distillation."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as config_dataclass

from treeagent.search.gumbel import improved_policy
from treeagent.search.node import Node, Tree, finished_paths, outcome, path_origin, reaches
from treeagent.types import Origin

_TEMPERATURE = 0.1
"""Temperature of "weighted", in reward units."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An action that the policy sampled at a state."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Behaviour log-probabilities log μ in nats, aligned with ``token_ids``."""
    target: float
    """π'(a|s), the probability to learn."""
    forced: tuple[int, ...] = ()
    """Indices of tokens that were not sampled and carry no loss, as in ``Action``."""


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A state with its candidates, in the order in which they were sampled."""

    task_id: str
    prompt_ids: tuple[int, ...]
    """The whole prompt as the policy read it, from the root to the state."""
    candidates: tuple[Candidate, ...]
    """At least one; their targets sum to 1."""
    origin: Origin = "real"
    """``imagined`` if the state, or one that a candidate leads to, is imagined."""


@config_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PolicyTargetConfig:
    """Which policy over the candidates of a state is the target, and at which states."""

    kind: Literal["improved", "visits", "found", "weighted"] = "improved"
    """Target of the distillation: "improved" weights the prior by the search's values (Gumbel MuZero), "visits" is the
    distribution of visits (AlphaZero), "found" is the prior over the actions below which a good end was found, and
    "weighted" is softmax(Q / 0.1) over the tried actions (advantage-weighted regression)."""
    min_return: float = 1.0
    """Learns from the candidates of a state only if a finished path through it has at least this undiscounted return,
    by the environment's own rewards."""


def policy_rows(tree: Tree, config: PolicyTargetConfig) -> Iterator[PolicyRow]:
    """The states from which a good end was found, with the search's policy π' over their candidates.

    "visits" is π'(a|s) = N(s,a) / Σ_b N(s,b) (Silver et al. 2017, with temperature 1); "improved" is π'(a|s) =
    softmax(log P(s,a) + σ(q̂(s,a))) (Danihelka et al. 2022, equation 11); "weighted" is π'(a|s) ∝ exp(Q(s,a) / 0.1)
    over the tried actions (Peng et al. 2019); "found" is π'(a|s) ∝ P(s,a) over the actions that lead to a
    good end: of all policies that take only these, the one nearest to the prior in KL. A candidate that
    ``tree.may_prefer`` excludes has the target 0, and its probability is divided among the others.
    """
    ended = finished_paths(tree)
    good = [path for path in ended if tree.may_prefer(path[-1]) and reaches(outcome(path), config.min_return)]
    leading = {id(edge) for path in good for edge in path}
    taught = {id(state) for path in good for state in tree.states(path[:-1])}
    for path, node in tree.walk():
        if id(node) not in taught or not node.visits:  # of states that lookahead examined, some have no visit
            continue
        policy = _POLICIES[config.kind](node)
        # A candidate that was not expanded may be malformed, too.
        may = [tree.may_prefer(edge) and not edge.action.error for edge in node.edges]
        if config.kind == "found":
            may = [each and id(edge) in leading for each, edge in zip(may, node.edges, strict=True)]
        targets = [share if teaches else 0.0 for share, teaches in zip(policy, may, strict=True)]
        total = sum(targets)
        if total <= 0:
            continue
        candidates = tuple(
            Candidate(edge.action.token_ids, edge.action.logprobs, share / total, edge.action.forced)
            for edge, share in zip(node.edges, targets, strict=True)
        )
        origin = path_origin((*path[-1:], *node.edges))
        yield PolicyRow(tree.task.id, tree.prompt_ids(path), candidates, origin)


def _weighted(node: Node) -> list[float]:
    """exp((Q(a) - max_b Q(b)) / 0.1) of each edge, in order; 0 if it was not tried."""
    best = max(edge.value for edge in node.edges if edge.visits)
    return [math.exp((edge.value - best) / _TEMPERATURE) if edge.visits else 0.0 for edge in node.edges]


_POLICIES: Mapping[str, Callable[[Node], Sequence[float]]] = {
    "improved": improved_policy,
    "visits": lambda node: [edge.visits / node.visits for edge in node.edges],
    "found": lambda node: [edge.prior for edge in node.edges],
    "weighted": _weighted,
}

"""Preference pairs for DPO: a pure view of a search tree (Agent Q, algorithm 1)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from operator import itemgetter
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as config_dataclass

from treeagent.search.node import Edge, Tree
from treeagent.types import Action, Origin


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two sibling actions of one state, the first preferred."""

    task_id: str
    context_ids: tuple[int, ...]
    """The whole prompt as the policy read it, root to state."""
    chosen: Action
    rejected: Action
    margin: float
    """Q(chosen) - Q(rejected), > 0; of Q mixed with the critic's where that has weight."""
    smoothing: float = 0.0
    """Conservative DPO's label smoothing, in [0, 0.5]."""
    origin: Origin = "real"


@config_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PairConfig:
    """Which siblings make a pair."""

    min_visits: Annotated[int, Field(gt=0)] = 1
    """n_min: both siblings were tried at least so often."""
    min_margin: Annotated[float, Field(gt=0)] = 0.2
    """θ: least |ΔQ|, in reward units."""
    critic_weight: Annotated[float, Field(ge=0, le=1)] = 0.0
    """1 - α of Q = α Q_search + (1 - α) Q_critic (Agent Q, equation 10), where the tree's search asked a critic."""
    rule: Literal["all", "best_vs_worst"] = "best_vs_worst"
    """Every pair of siblings (Agent Q), or one pair a node (MCTS-DPO)."""
    max_per_node: Annotated[int, Field(gt=0)] = 4
    """Pairs of widest margin kept at each node."""
    smoothing: Literal["none", "visits"] = "none"
    """Label smoothing N_l / (N_w + N_l), at most 0.5 (MCTS-DPO), or none."""


def preference_pairs(tree: Tree, config: PairConfig) -> Iterator[PreferencePair]:
    """Pairs of tried siblings whose Q differs by at least ``config.min_margin``, widest margin first at each node."""
    for path, node in tree.walk():
        tried = [(_mixed_value(edge, config), edge) for edge in node.edges if edge.visits >= config.min_visits]
        ranked = sorted(tried, key=itemgetter(0), reverse=True)
        # Chains keep equal draws apart: of two that read the same neither is to be preferred.
        wide = [
            (more - less, best, worst)
            for (more, best), (less, worst) in combinations(ranked, 2)
            if more - less >= config.min_margin and best.action.text != worst.action.text
        ]
        wide.sort(key=itemgetter(0), reverse=True)
        if config.rule == "best_vs_worst":
            wide = wide[:1]
        for margin, chosen, rejected in wide[: config.max_per_node]:
            yield PreferencePair(
                task_id=tree.task.id,
                context_ids=tree.prompt_ids(path),
                chosen=chosen.action,
                rejected=rejected.action,
                margin=margin,
                smoothing=_smoothing(chosen, rejected) if config.smoothing == "visits" else 0.0,
                origin=node.origin,
            )


def _mixed_value(edge: Edge, config: PairConfig) -> float:
    if edge.critic is None:
        return edge.value
    return (1 - config.critic_weight) * edge.value + config.critic_weight * edge.critic


def _smoothing(chosen: Edge, rejected: Edge) -> float:
    return min(rejected.visits / (chosen.visits + rejected.visits), 0.5)

"""Search advantages: A(s,a) = Q(s,a) - Σ_b N(s,b) Q(s,b) / Σ_b N(s,b), over the siblings b tried at s.

With the baseline "value" A(s,a) = Q(s,a) - V(s) (Sutton and Barto 2018, section 13.4), V being the value function.
"""

from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from treeagent.search.node import Tree


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class QConfig:
    """Options of the advantages "q"."""

    baseline: Literal["siblings", "value"] = "siblings"
    """What Q(s,a) is compared with: "siblings" is the visit-weighted mean of Q over the actions tried at s, "value" is
    V(s), the value function's estimate when the search reached s (0 where it was not asked)."""


def q_advantages(tree: Tree, config: QConfig, min_visits: int = 1) -> dict[int, float]:
    """A(s,a) in reward units by ``id`` of the edge.

    Args:
        tree: one searched tree.
        config: the baseline.
        min_visits: edges tried less often count neither as actions nor as siblings.

    With the baseline "siblings" the advantages of a node, weighted by visits, sum to 0, and a node with a single tried
    edge has none.
    """
    scored: dict[int, float] = {}
    for node in tree.nodes():
        tried = [edge for edge in node.edges if edge.visits >= min_visits]
        if config.baseline == "value":
            baseline = node.value
        elif len(tried) > 1:
            baseline = sum(edge.value_sum for edge in tried) / sum(edge.visits for edge in tried)
        else:
            continue
        scored.update({id(edge): edge.value - baseline for edge in tried})
    return scored

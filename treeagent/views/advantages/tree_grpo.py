"""Tree-GRPO (Ji et al. 2025): A(τ) = A_intra(τ) + A_inter(τ), GRPO's advantage within the trajectory's own tree plus
the one over all trees of the task; each is (R(τ) - mean R) / std R of its group."""

from collections.abc import Sequence

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from treeagent.search.node import Tree
from treeagent.views.advantages.common import Scale, outcomes, per_edge, relative


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TreeGRPOConfig:
    """Options of the advantages "tree_grpo"."""

    scale: Scale = "std"
    """Whether the difference from a group's mean return is divided by the group's standard deviation ("std"), or not
    ("none")."""


def tree_grpo_advantages(trees: Sequence[Tree], config: TreeGRPOConfig) -> dict[int, float]:
    """A(τ) by ``id`` of the edge; an edge that several trajectories share gets their mean."""
    paths, returns = outcomes(trees)
    intra = [each for tree in trees for each in relative(outcomes([tree])[1], config.scale)]
    inter = relative(returns, config.scale)
    return per_edge(paths, [own + group for own, group in zip(intra, inter, strict=True)])

"""Advantages of a tree's actions, with one file per kind. Each file begins with its formula and its paper."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent.search.node import Tree
from treeagent.views.advantages.common import TINY, trajectories
from treeagent.views.advantages.gae import GAEConfig, gae_advantages
from treeagent.views.advantages.gigpo import gigpo_advantages
from treeagent.views.advantages.grpo import GRPOConfig, grpo_advantages
from treeagent.views.advantages.q import q_advantages
from treeagent.views.advantages.rloo import rloo_advantages
from treeagent.views.advantages.rows import AdvantageRow, advantage_rows
from treeagent.views.advantages.tree_grpo import tree_grpo_advantages
from treeagent.views.advantages.treerl import treerl_advantages

__all__ = [
    "AdvantageConfig",
    "AdvantageRow",
    "GAEConfig",
    "GRPOConfig",
    "advantage_rows",
    "advantages",
]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class AdvantageConfig:
    """How actions are scored, and which actions are left out."""

    kind: Literal["q", "tree_grpo", "treerl", "gigpo", "grpo", "rloo", "gae"] = "q"
    """Formula of the advantage. "q" compares the search values of siblings, "gae" (PPO) compares each step with the
    value function, and the others compare the trajectories of a task's trees with each other."""
    min_visits: Annotated[int, Field(gt=0)] = 1
    """Minimum visit count N(s,a) of an action that gets an advantage."""
    grpo: GRPOConfig = Field(default_factory=GRPOConfig)
    """Options of the kind "grpo"."""
    gae: GAEConfig = Field(default_factory=GAEConfig)
    """Options of the kind "gae"."""


def advantages(
    trees: Sequence[Tree], config: AdvantageConfig, costs: Sequence[tuple[float, Sequence[Tree]]] = ()
) -> dict[int, float]:
    """A(s,a) of the actions in the trees of one task, by ``id`` of the edge. Actions with advantage 0 are left out.

    A trajectory is a tried path from the root to a node below which nothing was tried. V(s) is added to its return
    unless its end is known. An edge that several trajectories share gets the mean of their advantages. An action that
    ``tree.may_prefer`` excludes, such as a refused call, has an advantage of at most 0.

    Args:
        trees: all trees of the task.
        config: the formula, and which actions are left out.
        costs: for each cost its Lagrange multiplier λ, and the trees with that cost as reward (``cost_tree`` in
            ``contrib.judging.constraint``). The advantage is then (A_r - Σ λ A_c) / (1 + Σ λ), where A_r and A_c are
            advantages by the same formula.
    """
    visited = {
        id(edge) for tree in trees for path in trajectories(tree) for edge in path if edge.visits >= config.min_visits
    }
    untaught = {id(edge) for tree in trees for node in tree.nodes() for edge in node.edges if not tree.may_prefer(edge)}
    totals = _raw_advantages(trees, config)
    for multiplier, cost_trees in costs:
        for edge, cost in _of_originals(_raw_advantages(cost_trees, config), cost_trees, trees).items():
            totals[edge] = totals.get(edge, 0.0) - multiplier * cost
    scale = 1.0 + sum(multiplier for multiplier, _ in costs)
    scored = {edge: (min(each, 0.0) if edge in untaught else each) / scale for edge, each in totals.items()}
    return {edge: advantage for edge, advantage in scored.items() if edge in visited and abs(advantage) > TINY}


def _of_originals(scored: dict[int, float], copies: Sequence[Tree], trees: Sequence[Tree]) -> dict[int, float]:
    """What ``scored`` holds for the edges of the copies, by ``id`` of the original edges."""
    pairs = zip(copies, trees, strict=True)
    nodes = (both for copy, tree in pairs for both in zip(copy.nodes(), tree.nodes(), strict=True))
    edges = (both for copied, node in nodes for both in zip(copied.edges, node.edges, strict=True))
    return {id(edge): scored[id(copy)] for copy, edge in edges if id(copy) in scored}


def _raw_advantages(trees: Sequence[Tree], config: AdvantageConfig) -> dict[int, float]:
    """A(s,a) by the formula of ``config.kind``, before costs are subtracted and edges are left out."""
    match config.kind:
        case "q":
            by_tree = (q_advantages(tree, config.min_visits) for tree in trees)
            return {edge: advantage for scored in by_tree for edge, advantage in scored.items()}
        case "tree_grpo":
            return tree_grpo_advantages(trees)
        case "treerl":
            return treerl_advantages(trees)
        case "gigpo":
            return gigpo_advantages(trees)
        case "grpo":
            return grpo_advantages(trees, config.grpo)
        case "rloo":
            return rloo_advantages(trees)
        case "gae":
            return gae_advantages(trees, config.gae)

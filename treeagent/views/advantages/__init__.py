"""Advantages of a tree's actions: what every kind of them has in common."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent import seams
from treeagent.search.node import Tree
from treeagent.types import UserError
from treeagent.views.advantages.common import TINY, trajectories
from treeagent.views.advantages.rows import AdvantageRow, advantage_rows

__all__ = ["KINDS", "AdvantageConfig", "AdvantageRow", "advantage_rows", "advantages"]

KINDS: Mapping[str, str] = {
    kind: f"treeagent.views.advantages.kinds:{kind}_advantages"
    for kind in ("q", "tree_grpo", "treerl", "gigpo", "grpo", "rloo", "gae")
}
"""The core's kinds, each with its function."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class AdvantageConfig:
    """How actions are scored."""

    kind: Annotated[str, AfterValidator(lambda name: seams.known("update.advantages.kind", name, KINDS))] = "q"
    """Formula of the advantage. "q" compares the search values of siblings, "gae" (PPO) compares each step with the
    value function, and "tree_grpo", "treerl", "gigpo", "grpo" and "rloo" compare the trajectories of a task's trees
    with each other. Or your own "module:function": it takes the trees of a task and returns A by ``id`` of the edge."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function: ``min_visits`` of "q", ``scale`` of "grpo", ``lambda_`` of "gae"."""


def advantages(trees: Sequence[Tree], config: AdvantageConfig) -> dict[int, float]:
    """A(s,a) of the actions in the trees of one task, by ``id`` of the edge. Actions with advantage 0 are left out.

    A trajectory is a tried path from the root to a node below which nothing was tried. V(s) is added to its return
    unless its end is known. An edge that several trajectories share gets the mean of their advantages. An action that
    ``tree.may_prefer`` excludes, such as a refused call, has an advantage of at most 0.

    Raises:
        UserError: the kind cannot be imported, or it refuses the options.
    """
    score = seams.resolve("update.advantages.kind", config.kind, KINDS)
    try:
        inspect.signature(score).bind(trees, **config.options)
    except TypeError as error:
        raise UserError(
            f"update.advantages.options do not fit the kind {config.kind!r} ({error}): mend them"
        ) from error
    scored: Mapping[int, float] = score(trees, **config.options)
    visited = {id(edge) for tree in trees for path in trajectories(tree) for edge in path}
    untaught = {id(edge) for tree in trees for node in tree.nodes() for edge in node.edges if not tree.may_prefer(edge)}
    bounded = {edge: min(each, 0.0) if edge in untaught else each for edge, each in scored.items()}
    return {edge: advantage for edge, advantage in bounded.items() if edge in visited and abs(advantage) > TINY}

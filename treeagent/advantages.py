"""Advantages of a tree's actions, packed into rows in which every sampled token is trained at most once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as config_dataclass

from treeagent.search.node import Edge, Node, Tree


@dataclass(frozen=True, slots=True)
class AdvantageRow:
    """One root-to-leaf path. All tuples after ``prompt_ids`` are aligned with ``completion_ids``."""

    task_id: str
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    """True where a token was sampled by the policy and is trained in this row: observations and steps that an
    earlier row already trains are False."""
    advantages: tuple[float, ...]
    logprobs: tuple[float, ...]
    """Behaviour log-probabilities in nats; 0 where ``mask`` is False."""


@config_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class AdvantageConfig:
    """Which actions are scored."""

    min_visits: Annotated[int, Field(gt=0)] = 1
    """Edges tried less often are left out."""
    min_siblings: Annotated[int, Field(ge=2)] = 2
    """Nodes with fewer tried edges give no advantage: there is nothing to compare with."""


def q_advantages(tree: Tree, config: AdvantageConfig) -> dict[int, float]:
    """A(s,a) = Q(s,a) - Σ_b N(s,b) Q(s,b) / Σ_b N(s,b), by ``id`` of the edge.

    The baseline is the visit-weighted mean of the tried siblings, so that advantages weighted by visits sum to 0 at
    every node; siblings of equal Q, and singletons, get none.
    """
    scored: dict[int, float] = {}
    for node in tree.nodes():
        tried = [edge for edge in node.edges if edge.visits >= config.min_visits]
        if len(tried) < config.min_siblings:
            continue
        baseline = sum(edge.value_sum for edge in tried) / sum(edge.visits for edge in tried)
        scored.update({id(edge): edge.value - baseline for edge in tried})
    # Not "!= 0": the mean of equal numbers may be off by a rounding, and a row would be trained for that.
    return {edge: advantage for edge, advantage in scored.items() if abs(advantage) > 1e-9}


def advantage_rows(tree: Tree, scored: Mapping[int, float]) -> Iterator[AdvantageRow]:
    """Root-to-leaf rows that cover every scored edge, each edge's tokens trained in the first row that holds it."""
    trained: set[int] = set()
    for path in _leaf_paths(tree.root, ()):
        new = {id(edge) for edge in path if id(edge) in scored} - trained
        if not new:
            continue
        trained |= new
        last = max(place for place, edge in enumerate(path) if id(edge) in new)
        yield _row(tree, path[: last + 1], scored, new)


def _leaf_paths(node: Node, path: tuple[Edge, ...]) -> Iterator[tuple[Edge, ...]]:
    tried = [edge for edge in node.edges if edge.child is not None]
    if not tried:
        yield path
    for edge in tried:
        assert edge.child is not None
        yield from _leaf_paths(edge.child, (*path, edge))


def _row(tree: Tree, path: tuple[Edge, ...], scored: Mapping[int, float], new: set[int]) -> AdvantageRow:
    ids: list[int] = []
    mask: list[bool] = []
    advantages: list[float] = []
    logprobs: list[float] = []
    for place, edge in enumerate(path):
        action, trains = edge.action, id(edge) in new
        context = edge.child.context_ids if edge.child is not None and place + 1 < len(path) else ()
        ids += [*action.token_ids, *context]
        mask += [trains] * len(action.token_ids) + [False] * len(context)
        advantages += [scored[id(edge)] if trains else 0.0] * len(action.token_ids) + [0.0] * len(context)
        logprobs += [logprob if trains else 0.0 for logprob in action.logprobs] + [0.0] * len(context)
    return AdvantageRow(
        tree.task.id, tree.root.context_ids, tuple(ids), tuple(mask), tuple(advantages), tuple(logprobs)
    )

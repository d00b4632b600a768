"""Supervised targets: likelihood and value rows as pure views of trees."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as config_dataclass

from treeagent.search.node import Edge, Node, Tree, path_return


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One conversation with the tokens to be imitated and the positions whose value is known."""

    task_id: str
    token_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    """True where the token carries likelihood loss: the agent's own tokens, never an observation's."""
    value_positions: tuple[int, ...] = ()
    """Indices into ``token_ids``: the last token of each state, from which V(s) is read."""
    value_targets: tuple[float, ...] = ()
    """The return from that state, in reward units; aligned with ``value_positions``."""


@config_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TargetConfig:
    """Which paths are imitated and what a state is worth."""

    min_return: float = 1.0
    """Least return of a path worth imitating."""
    paths_per_tree: Annotated[int, Field(gt=0)] = 1
    """Paths of highest return imitated in each tree."""
    value: Literal["mean", "best"] = "best"
    """V(s): visit-weighted mean of Q(s,a), or the highest return found below s (deterministic dynamics only)."""


def imitation_rows(tree: Tree, config: TargetConfig) -> Iterator[TokenRow]:
    """The best finished paths: rejection-sampling fine-tuning (RFT) on what search found.

    Ties go to the shorter path, then to the one found first.
    """
    ended = [path for path, node in tree.walk() if path and node.terminated]
    good = [path for path in ended if path_return(path, tree.discount) >= config.min_return]
    good.sort(key=lambda path: (-path_return(path, tree.discount), len(path)))
    for path in good[: config.paths_per_tree]:
        yield path_row(tree, path, value_targets=[path_return(path, tree.discount)] * (len(path) + 1))


def value_rows(tree: Tree, config: TargetConfig) -> Iterator[TokenRow]:
    """Every state whose return search has seen, once, on root-to-leaf rows without likelihood loss."""
    told: set[int] = set()
    for path, node in tree.walk():
        if any(edge.child is not None for edge in node.edges):
            continue
        nodes = [tree.root, *(edge.child for edge in path if edge.child is not None)]
        arrivals = [None, *path]
        targets = [
            None
            if id(visited) in told or not _is_read(visited)
            else state_return(visited, arrival, config.value, tree.discount)
            for visited, arrival in zip(nodes, arrivals, strict=True)
        ]
        told.update(map(id, nodes))
        if any(target is not None for target in targets):
            yield path_row(tree, path, targets, imitate=False)


def _is_read(node: Node) -> bool:
    """The tokens of its state are known: it was evaluated or expanded, or it ends in the policy's own tokens."""
    return bool(node.context_ids) or node.state.messages[-1].partial


def state_return(
    node: Node, arrival: Edge | None, kind: Literal["mean", "best"], discount: float = 1.0
) -> float | None:
    """What search found V(s) to be; the outcome itself at an end, None where nothing below was tried.

    The arrival's reward stands for a terminal state's value, since at evaluation the head must judge the outcome there.
    """
    if node.terminated:
        return arrival.reward if arrival is not None else None
    tried = [edge for edge in node.edges if edge.visits]
    if not tried:
        return None
    if kind == "mean":
        return sum(edge.value_sum for edge in tried) / sum(edge.visits for edge in tried)
    return max(best_return(edge, discount) for edge in tried)


def best_return(edge: Edge, discount: float = 1.0) -> float:
    """The highest return of any path found from this edge on, in a deterministic dynamics."""
    reward, node = edge.reward or 0.0, edge.child
    if node is None:
        return reward
    below = [best_return(lower, discount) for lower in node.edges if lower.visits]
    return reward + discount * (max(below) if below else node.leaf_value(edge.reward))


def path_row(
    tree: Tree, path: Sequence[Edge], value_targets: Sequence[float | None] = (), *, imitate: bool = True
) -> TokenRow:
    """The tokens of a path; ``value_targets`` belong to its states, root first, None where unknown."""
    ids = list(tree.root.context_ids)
    mask = [False] * len(ids)
    ends = [len(ids) - 1]
    for edge in path:
        context = edge.child.context_ids if edge.child is not None else ()
        ids += [*edge.action.token_ids, *context]
        mask += [imitate] * len(edge.action.token_ids) + [False] * len(context)
        ends.append(len(ids) - 1)
    known = [(end, target) for end, target in zip(ends, value_targets, strict=False) if target is not None]
    return TokenRow(
        tree.task.id,
        tuple(ids),
        tuple(mask),
        tuple(end for end, _ in known),
        tuple(target for _, target in known),
    )

"""Value targets: the outcome of the episode that search found from each state of a tree."""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as config_dataclass

from treeagent.search.node import Edge, Node, Tree, edges_below, finished_paths, succeeds
from treeagent.views.tokens import TokenRow, path_rows


@config_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ValueTargetConfig:
    """How the value of a state is computed from the tree below it."""

    target: Literal["best", "lambda"] = "best"
    """What the value head learns of a state s: the reward on the way to s plus the highest return found below s
    ("best", for deterministic environments only), or the λ-return ("lambda")."""
    lambda_: Annotated[float, Field(ge=0, le=1)] = 0.95
    """λ of the "lambda" target: 0 uses the value function after one step, 1 only the returns of whole paths. Trees of
    independent chains have no value estimates before their ends and need 1."""


def value_rows(tree: Tree, config: ValueTargetConfig) -> Iterator[TokenRow]:
    """Rows from the root to each leaf that give a target to every state with a known return, exactly once. The rows
    carry no likelihood loss. Targets are outcomes in reward units, as in ``state_outcome``."""
    targeted: set[int] = set()
    unknown = _states_before_unknown_ends(tree)

    def target(node: Node, path: Sequence[Edge]) -> float | None:
        return None if id(node) in unknown else state_outcome(node, path, config, tree.discount)

    for path, node in tree.walk():
        if any(edge.child is not None for edge in node.edges):
            continue
        nodes = tree.states(path)
        targets = [
            None if id(visited) in targeted or not is_read(visited) else target(visited, path[:depth])
            for depth, visited in enumerate(nodes)
        ]
        targeted.update(map(id, nodes))
        yield from path_rows(tree, path, targets, imitated=())


def _states_before_unknown_ends(tree: Tree) -> set[int]:
    """The states on paths of unknown return, by ``id`` of the node, in a tree without estimates of V(s): the reward of
    the end is withheld, or the path of a transcript stops before an end."""
    if tree.budget.estimates:
        return set()
    paths = [path for path in finished_paths(tree) if path[-1].reward is None]
    if not tree.budget.simulations:
        paths += [path for path, node in tree.walk() if not node.edges and not node.final]
    return {id(node) for path in paths for node in tree.states(path)}


def is_read(node: Node) -> bool:
    """Whether the state's tokens are known."""
    return bool(node.context_ids) or any(message.partial for message in node.state.messages[-1:])


def found_success(tree: Tree) -> dict[int, bool]:
    """Whether any finished path through a state succeeds, by the node's ``id``. States on no finished path are left
    out."""
    found: dict[int, bool] = {}
    for path in finished_paths(tree):
        for each in tree.states(path):
            found[id(each)] = found.get(id(each), False) or succeeds(path)
    return found


def state_outcome(node: Node, path: Sequence[Edge], config: ValueTargetConfig, discount: float = 1.0) -> float | None:
    """The reward on the way to a state (along ``path`` from the root) plus V(s) as search found it, in reward units.
    None if nothing was tried below the state except refused calls, or if the state is an end with a withheld reward.
    ``discount`` is γ of a step, used in V(s) alone."""
    paid = sum(edge.reward or 0.0 for edge in path)
    if node.final:
        return paid if path and path[-1].reward is not None else None
    tried = _tried_edges(node)
    if not tried:
        return None
    if config.target == "best":
        return paid + max(best_return(edge, discount) for edge in tried)
    return paid + _visit_mean(tried, [lambda_return(edge, config.lambda_, discount) for edge in tried])


def best_return(edge: Edge, discount: float = 1.0) -> float:
    """The highest return of any path from this edge on, in reward units. A leaf that is not an end adds V(s)."""

    def step(each: Edge, node: Node, tried: Sequence[Edge], found: Sequence[float]) -> float:
        return each.discount(discount) * max(found) if found else each.leaf_return(discount) - (each.reward or 0.0)

    return _return(edge, step)


def lambda_return(edge: Edge, lambda_: float, discount: float = 1.0) -> float:
    """The λ-return G^λ(s,a) = r + γ [(1 - λ) V(s') + λ G^λ(s')] (Sutton and Barto 2018, section 12.8), where G^λ(s') is
    the visit-weighted mean of G^λ(s',a') over the actions tried at s'."""

    def step(each: Edge, node: Node, tried: Sequence[Edge], found: Sequence[float]) -> float:
        after = each.leaf_return(discount) - (each.reward or 0.0)
        if tried:
            after = (1 - lambda_) * after + lambda_ * each.discount(discount) * _visit_mean(tried, found)
        return after

    return _return(edge, step)


def _return(edge: Edge, step: Callable[[Edge, Node, Sequence[Edge], Sequence[float]], float]) -> float:
    """r + ``step(edge, s', tried, returns)``, where ``tried`` are the edges tried at s', the state that the edge leads
    to, and ``returns`` are what this formula gives for them. It is r alone if the edge was never expanded."""
    returns: dict[int, float] = {}
    for each in reversed(edges_below(edge)):
        returns[id(each)] = each.reward or 0.0
        if each.child is not None:
            tried = _tried_edges(each.child)
            returns[id(each)] += step(each, each.child, tried, [returns[id(lower)] for lower in tried])
    return returns[id(edge)]


def _tried_edges(node: Node) -> list[Edge]:
    """The tried edges with informative returns: not those to refused calls or repeats beyond which nothing was tried,
    where V of a state would be fitted to itself."""

    def leads_back(child: Node | None) -> bool:
        return child is not None and (child.invalid or child.repeat) and not (child.ended or child.visits)

    return [edge for edge in node.edges if edge.visits and not leads_back(edge.child)]


def _visit_mean(edges: Sequence[Edge], values: Sequence[float]) -> float:
    total = sum(edge.visits * value for edge, value in zip(edges, values, strict=True))
    return total / sum(edge.visits for edge in edges)

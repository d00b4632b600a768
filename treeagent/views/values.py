"""Value targets: what search found each state of a tree to be worth."""

from collections.abc import Iterator, Sequence

from treeagent.search.node import Edge, Node, Tree
from treeagent.views.imitation import TargetConfig
from treeagent.views.tokens import TokenRow, path_rows


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
            else state_return(visited, arrival, config, tree.discount)
            for visited, arrival in zip(nodes, arrivals, strict=True)
        ]
        told.update(map(id, nodes))
        yield from path_rows(tree, path, targets, imitate_from=len(path))


def _is_read(node: Node) -> bool:
    """The tokens of its state are known: it was evaluated or expanded, or it ends in the policy's own tokens."""
    return bool(node.context_ids) or any(message.partial for message in node.state.messages[-1:])


def state_return(node: Node, arrival: Edge | None, config: TargetConfig, discount: float = 1.0) -> float | None:
    """What search found V(s) to be; the outcome itself at an end, None where nothing below was tried.

    The arrival's reward stands for a terminal state's value, since at evaluation the head must judge the outcome there.
    """
    if node.terminated:
        return arrival.reward if arrival is not None else None
    tried = [edge for edge in node.edges if edge.visits]
    if not tried:
        return None
    if config.value == "best":
        return max(best_return(edge, discount) for edge in tried)
    if config.value == "lambda":
        return _visit_mean(tried, [lambda_return(edge, config.lambda_, discount) for edge in tried])
    return sum(edge.value_sum for edge in tried) / sum(edge.visits for edge in tried)


def best_return(edge: Edge, discount: float = 1.0) -> float:
    """The highest return of any path found from this edge on, in a deterministic dynamics."""
    reward, node = edge.reward or 0.0, edge.child
    if node is None:
        return reward
    below = [best_return(lower, discount) for lower in node.edges if lower.visits]
    return reward + _discount(edge, discount) * (max(below) if below else node.leaf_value(edge.reward))


def lambda_return(edge: Edge, lambda_: float, discount: float = 1.0) -> float:
    """G^λ(s,a) = r + γ [(1 - λ) V(s') + λ G^λ(s')], the visit-weighted mean over the actions tried at s' being G^λ(s')
    (Sutton and Barto 2018, section 12.8); r + γ V(s') where none was, and nothing after a known end."""
    reward, node = edge.reward or 0.0, edge.child
    if node is None:
        return reward
    after = node.leaf_value(edge.reward)
    tried = [lower for lower in node.edges if lower.visits]
    if tried:
        found = _visit_mean(tried, [lambda_return(lower, lambda_, discount) for lower in tried])
        after = (1 - lambda_) * after + lambda_ * found
    return reward + _discount(edge, discount) * after


def _visit_mean(edges: Sequence[Edge], values: Sequence[float]) -> float:
    total = sum(edge.visits * value for edge, value in zip(edges, values, strict=True))
    return total / sum(edge.visits for edge in edges)


def _discount(edge: Edge, discount: float) -> float:
    """γ of a step; a thought takes none."""
    return 1.0 if edge.thought else discount

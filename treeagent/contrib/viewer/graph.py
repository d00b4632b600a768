"""A tree as a networkx graph, for drawings, graph algorithms and ``networkx.write_graphml``."""

import json
from dataclasses import asdict
from typing import Any

import networkx

from treeagent.search.decide import best_path
from treeagent.search.node import Edge, Node, Tree
from treeagent.visible import visible


def to_networkx(tree: Tree) -> networkx.DiGraph:
    """States as nodes, numbered as in the tree's record, and the tried actions between them as edges.

    Nodes have V, N, origin, terminated, truncated, invalid and text (the last message). Edges have N, Q, P,
    W, text, call, logprob (in nats) and, unless it was withheld, r. ``best`` marks the best path. Control and invisible
    characters are escaped.
    """
    best = {id(edge) for edge in best_path(tree)}
    graph = networkx.DiGraph(task=visible(tree.task.id), seed=tree.seed, discount=tree.discount)
    numbers: dict[int, int] = {}
    for number, (path, node) in enumerate(tree.walk()):
        numbers[id(node)] = number
        graph.add_node(number, **_node(node), best=bool(path) and id(path[-1]) in best)
        if path:
            above = path[-2].child if len(path) > 1 else tree.root
            graph.add_edge(numbers[id(above)], number, **_edge(path[-1]), best=id(path[-1]) in best)
    return graph


def _node(node: Node) -> dict[str, Any]:
    text = node.state.messages[-1].content if node.state.messages else ""
    ends = {"terminated": node.terminated, "truncated": node.truncated, "invalid": node.invalid}
    return {"V": float(node.value), "N": node.visits, "origin": node.origin, "text": visible(text, lines=True)} | ends


def _edge(edge: Edge) -> dict[str, Any]:
    call = edge.action.call if isinstance(edge.action.call, str) else json.dumps(asdict(edge.action.call))
    numbers = {"N": edge.visits, "Q": float(edge.value), "P": float(edge.prior), "W": float(edge.value_sum)}
    texts = {"text": visible(edge.action.text, lines=True), "call": visible(call, lines=True)}
    known = {} if edge.reward is None else {"r": float(edge.reward)}
    return numbers | texts | known | {"logprob": float(edge.action.logprob)}

"""A tree as plain JSON values and back. Format 1; the environment's snapshots are not kept.

One record is one tree: ``nodes`` in depth-first order, each with the place of its parent and of the edge that leads
to it, and only the messages and tokens that it adds. docs/format.md describes every key.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from treeagent.search.node import Budget, Edge, Node, Tree
from treeagent.types import Action, Message, State, Task, ToolCall

FORMAT = 1
Record = dict[str, Any]


def to_record(tree: Tree) -> Record:
    """The tree as JSON values."""
    places: dict[int, int] = {}
    nodes: list[Record] = []
    for path, node in tree.walk():
        places[id(node)] = len(nodes)
        parent = (path[-2].child if len(path) > 1 else tree.root) if path else None
        known = len(parent.state.messages) + 1 if parent else 0  # +1: the action itself lies on the edge
        nodes.append(
            {
                "parent": places[id(parent)] if parent else -1,
                "edge": parent.edges.index(path[-1]) if parent else -1,
                "messages": [[message.role, message.content] for message in node.state.messages[known:]],
                "key": node.state.key,
                "context_ids": node.context_ids,
                "value": node.value,
                "terminated": node.terminated,
                "truncated": node.truncated,
                "origin": node.origin,
                "invalid": node.invalid,
                "edges": [_edge_record(edge) for edge in node.edges],
            }
        )
    return {
        "format": FORMAT,
        "task": asdict(tree.task),
        "seed": tree.seed,
        "error": tree.error,
        "budget": asdict(tree.budget),
        "nodes": nodes,
    }


def from_record(record: Mapping[str, Any]) -> Tree:
    """The tree of a record.

    Raises:
        ValueError: the record has another format, or lacks a key.
    """
    if record.get("format") != FORMAT:
        raise ValueError(f"tree format {record.get('format')!r} is unknown: this version reads format {FORMAT}")
    try:
        task = Task(**record["task"])
        nodes: list[Node] = []
        for row in record["nodes"]:
            nodes.append(_node(row, task, nodes))
        return Tree(task, record["seed"], nodes[0], Budget(**record["budget"]), record["error"])
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"tree record is incomplete: {type(error).__name__} {error}") from error


def _edge_record(edge: Edge) -> Record:
    action = edge.action
    call = action.call if isinstance(action.call, str) else asdict(action.call)
    return {
        "text": action.text,
        "thought": action.thought,
        "call": call,
        "error": action.error,
        "token_ids": action.token_ids,
        "logprobs": action.logprobs,
        "prior": edge.prior,
        "visits": edge.visits,
        "value_sum": edge.value_sum,
        "reward": edge.reward,
    }


def _edge(row: Mapping[str, Any]) -> Edge:
    call = row["call"] if isinstance(row["call"], str) else ToolCall(**row["call"])
    action = Action(row["text"], call, row["thought"], tuple(row["token_ids"]), tuple(row["logprobs"]), row["error"])
    return Edge(action, row["prior"], row["visits"], row["value_sum"], row["reward"])


def _node(row: Mapping[str, Any], task: Task, earlier: list[Node]) -> Node:
    messages = tuple(Message(role, content) for role, content in row["messages"])
    edge = None
    if row["parent"] >= 0:
        parent = earlier[row["parent"]]
        edge = parent.edges[row["edge"]]
        said = Message("assistant", edge.action.text, edge.action.token_ids)
        messages = (*parent.state.messages, said, *messages)
    node = Node(
        State(task, messages, row["key"]),
        value=row["value"],
        context_ids=tuple(row["context_ids"]),
        terminated=row["terminated"],
        truncated=row["truncated"],
        origin=row["origin"],
        invalid=row["invalid"],
        edges=[_edge(edge_row) for edge_row in row["edges"]],
        exhausted=row["terminated"] or row["truncated"],
    )
    if edge is not None:
        edge.child = node
    return node

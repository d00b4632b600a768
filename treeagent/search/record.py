"""Converts a tree to plain JSON values and back. The environment's snapshots are not kept.

One record is one tree. ``nodes`` are in depth-first order. Each holds the index of its parent and of the edge that
leads to it, and only the messages and tokens that it adds. docs/files.md describes every key.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import orjson

from treeagent.search.node import Budget, Edge, Node, Spent, Tree
from treeagent.types import SPLITS, Action, Message, State, Task, ToolCall, UserError, storable

FORMAT = 4
"""Trees of format 3 are read, too; what they hold beyond format 4 is ignored."""
Record = dict[str, Any]

# Fields that are written unchanged. A new plain field of one of these classes must be added here.
TREE_FIELDS = ("seed", "error", "discount")
NODE_FIELDS = ("value", "terminated", "truncated", "origin", "invalid", "unknown", "exhausted")
EDGE_FIELDS = ("prior", "visits", "value_sum", "reward")
ACTION_FIELDS = ("text", "thought", "error")
MESSAGE_FIELDS = ("role", "content", "partial")


def to_record(tree: Tree) -> Record:
    indices: dict[int, int] = {}
    nodes: list[Record] = []
    images: dict[str, int] = {}  # with the place of each in the tree's list
    for path, node in tree.walk():
        indices[id(node)] = len(nodes)
        parent = (path[-2].child if len(path) > 1 else tree.root) if path else None
        conversation = _conversation(parent, path[-1]) if parent else ()
        history = _shared_length(conversation, node.state.messages)
        nodes.append(
            {
                "parent": indices[id(parent)] if parent else -1,
                "edge": parent.edges.index(path[-1]) if parent else -1,
                "history": history,
                "messages": [
                    {
                        **_plain(message, MESSAGE_FIELDS),
                        "token_ids": message.token_ids,
                        **_set(images=[images.setdefault(each, len(images)) for each in message.images]),
                    }
                    for message in node.state.messages[history:]
                ],
                "key": node.state.key,
                "context_ids": node.context_ids,
                **_set(left_out=node.left_out, repeat=node.repeat),
                **_plain(node, NODE_FIELDS),
                "edges": [_edge_record(edge) for edge in node.edges],
            }
        )
    columns = {
        "tokens": [each.tokens for each in tree.spent],
        "steps": [each.steps for each in tree.spent],
        "seconds": [round(each.seconds, 4) for each in tree.spent],
    }
    return {
        "format": FORMAT,
        "task": asdict(tree.task),
        **_plain(tree, TREE_FIELDS),
        **({"place": tree.place} if tree.place is not None else {}),
        **_set(policy=tree.policy),
        "budget": asdict(tree.budget),
        # -1 stands for a node that a replay has since removed. One list per kind of cost compresses well.
        **_set(order=[indices.get(id(node), -1) for node in tree.order], spent=columns if tree.spent else None),
        **_set(images=[*images]),
        "nodes": nodes,
    }


def _edge_record(edge: Edge) -> Record:
    action = edge.action
    return {
        **_plain(action, ACTION_FIELDS),
        "call": action.call if isinstance(action.call, str) else asdict(action.call),
        "token_ids": action.token_ids,
        "logprobs": action.logprobs,
        **_plain(edge, EDGE_FIELDS),
        **_set(forced=action.forced, group=edge.group),
        **({"chance": edge.chance} if edge.chance is not None else {}),
        **({"own_reward": edge.own_reward} if edge.own_reward is not None else {}),
    }


def _plain(value: object, names: tuple[str, ...]) -> Record:
    return {name: getattr(value, name) for name in names}


def _set(**optional: object) -> Record:
    """The values that are neither zero nor empty."""
    return {name: value for name, value in optional.items() if value}


def storable_trees(trees: Iterable[Tree]) -> Iterator[tuple[Tree, Record]]:
    """Trees with their JSON values. A tree that JSON cannot hold is replaced by one with only its task and the reason
    in ``error``, so that the other trees are not lost with it."""
    for tree in trees:
        try:
            record = to_record(tree)
            orjson.dumps(record)
        except (TypeError, ValueError, RecursionError) as error:  # orjson's error is a TypeError
            task = Task(storable(str(tree.task.id)), storable(str(tree.task.prompt)), tree.task.split)
            reason = f"the tree cannot be stored ({error}): see that the environment gives plain JSON values"
            root = Node(State(task, ()), truncated=True)
            tree = replace(tree, task=task, root=root, error=storable(tree.error or reason), order=[], spent=[])
            record = to_record(tree)
        yield tree, record


def from_record(record: Mapping[str, Any]) -> Tree:
    check_format(record)
    try:
        task = Task(**record["task"])
        if task.split not in SPLITS:  # the split becomes part of an exported file's name
            raise ValueError(f"split {task.split!r}")
        nodes: list[Node] = []
        for row in record["nodes"]:
            nodes.append(_node(row, task, nodes, record.get("images", ())))
        columns = [record.get("spent", {}).get(name, ()) for name in Spent._fields]
        return Tree(
            task,
            root=nodes[0],
            budget=Budget(**{name: spent for name, spent in record["budget"].items() if name in Budget.__slots__}),
            order=[nodes[index] if index >= 0 else None for index in record.get("order", ())],
            spent=[Spent(int(tokens), int(steps), float(took)) for tokens, steps, took in zip(*columns, strict=True)],
            place=record.get("place"),
            policy=record.get("policy", ""),
            **_select(record, TREE_FIELDS),
        )
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"tree record is incomplete: {type(error).__name__} {error}; collect the trees anew") from error


def check_format(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check the format of a record and return the record."""
    if (version := record.get("format")) not in (3, FORMAT):
        raise UserError(
            f"tree format {version!r} is unknown: this version reads formats 3 and {FORMAT}; collect them anew, or "
            "read them with the treeagent that wrote them"
        )
    return record


def _select(row: Mapping[str, Any], names: tuple[str, ...]) -> Record:
    return {name: row[name] for name in names}


def _conversation(parent: Node, edge: Edge) -> tuple[Message, ...]:
    return (*parent.state.messages, Message("assistant", edge.action.text, edge.action.token_ids))


def _shared_length(conversation: tuple[Message, ...], messages: tuple[Message, ...]) -> int:
    if messages[: len(conversation)] == conversation:
        return len(conversation)
    return next(index for index, message in enumerate(conversation) if messages[index : index + 1] != (message,))


def _edge(row: Mapping[str, Any]) -> Edge:
    action = Action(
        call=row["call"] if isinstance(row["call"], str) else ToolCall(**row["call"]),
        token_ids=tuple(row["token_ids"]),
        logprobs=tuple(row["logprobs"]),
        forced=tuple(row.get("forced", ())),
        **_select(row, ACTION_FIELDS),
    )
    others = {"chance": row.get("chance"), "group": row.get("group", 0), "own_reward": row.get("own_reward")}
    return Edge(action, **others, **_select(row, EDGE_FIELDS))


def _node(row: Mapping[str, Any], task: Task, earlier: list[Node], images: Sequence[str]) -> Node:
    added = [
        Message(
            token_ids=tuple(message["token_ids"]),
            images=tuple(images[place] for place in message.get("images", ())),
            **_select(message, MESSAGE_FIELDS),
        )
        for message in row["messages"]
    ]
    arrival, conversation = None, tuple[Message, ...]()
    if row["parent"] >= 0:
        parent = earlier[row["parent"]]
        arrival = parent.edges[row["edge"]]
        conversation = _conversation(parent, arrival)[: row["history"]]
    node = Node(
        State(task, (*conversation, *added), row["key"], ended=row["terminated"] or row["truncated"]),
        context_ids=tuple(row["context_ids"]),
        left_out=tuple(row.get("left_out", ())),
        repeat=row.get("repeat", False),
        edges=[_edge(edge) for edge in row["edges"]],
        **_select(row, NODE_FIELDS),
    )
    if arrival is not None:
        arrival.child = node
    return node

"""Converts each view of a tree to rows of plain values, in TRL's dataset format if TRL has one for the view."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pyarrow

from treeagent.config import RunConfig
from treeagent.contrib.early_experience.rows import reflections, world_rows
from treeagent.contrib.hindsight.criticality import criticality
from treeagent.search.node import Edge, Node, Tree, path_origin
from treeagent.types import Message, as_read
from treeagent.views.advantages import advantage_rows, advantages
from treeagent.views.imitation import imitation_rows
from treeagent.views.pairs import preference_pairs
from treeagent.views.policy import policy_rows
from treeagent.views.tokens import TokenRow
from treeagent.views.transitions import transitions, tree_grammar
from treeagent.views.values import value_rows

Row = dict[str, Any]
_IGNORED = -100
"""The label by which torch and TRL exclude a token from the loss."""


@dataclass(frozen=True, slots=True)
class View:
    """One config of the dataset: its columns, and the function that converts a tree to rows."""

    columns: pyarrow.Schema
    rows: Callable[[Tree, RunConfig], Iterator[Row]]
    section: str = ""
    """Name of the section of ``update`` that the rows depend on; empty if there is none."""
    texts: bool = False
    """Whether the rows can be made from trees without token ids."""


def _pairs(tree: Tree, config: RunConfig) -> Iterator[Row]:
    conversations = _conversations(tree)
    for pair in preference_pairs(tree, config.update.pairs):
        prompt = conversations[pair.context_ids]
        if prompt[-1].partial:  # both sides continue a turn: include its beginning in both
            prompt = prompt[:-1]
        sides = (pair.chosen, pair.rejected)
        chosen, rejected = (conversations[pair.context_ids + side.token_ids][len(prompt) :] for side in sides)
        yield {
            "task_id": pair.task_id,
            "prompt": _message_rows(prompt),
            "chosen": _message_rows(chosen),
            "rejected": _message_rows(rejected),
            "ends_turn": not (chosen[-1].partial or rejected[-1].partial),
            "prompt_ids": pair.context_ids,
            "chosen_ids": pair.chosen.token_ids,
            "rejected_ids": pair.rejected.token_ids,
            "chosen_mask": pair.chosen.mask,
            "rejected_mask": pair.rejected.mask,
            "ref_chosen_logps": pair.chosen.logprob,
            "ref_rejected_logps": pair.rejected.logprob,
            "margin": pair.margin,
            "origin": pair.origin,
        }


def _advantages(tree: Tree, config: RunConfig) -> Iterator[Row]:
    for row in advantage_rows(tree, advantages([tree], config.update.advantages)):
        yield {field.name: getattr(row, field.name) for field in fields(row)}


def _imitation(tree: Tree, config: RunConfig) -> Iterator[Row]:
    conversations = _conversations(tree)
    for row in imitation_rows(tree, config.update.imitation):
        messages = conversations[row.token_ids]
        if not any(row.mask):  # the segment after a cut of the prompt may hold no action
            continue
        while messages[-1].role != "assistant":  # messages after the last action are not imitated
            messages = messages[:-1]
        yield _labelled(row, messages) | {"origin": row.origin}


def _policy(tree: Tree, config: RunConfig) -> Iterator[Row]:
    for row in policy_rows(tree, config.update.targets):
        yield {
            "task_id": row.task_id,
            "prompt_ids": row.prompt_ids,
            "candidate_ids": [each.token_ids for each in row.candidates],
            "candidate_masks": [
                [place not in each.forced for place in range(len(each.token_ids))] for each in row.candidates
            ],
            "candidate_logps": [sum(each.logprobs) for each in row.candidates],
            "targets": [each.target for each in row.candidates],
            "origin": row.origin,
        }


def _labelled(row: TokenRow, messages: Sequence[Message]) -> Row:
    return {
        "task_id": row.task_id,
        "messages": _message_rows(messages),
        "input_ids": row.token_ids,
        "labels": [token if in_loss else _IGNORED for token, in_loss in zip(row.token_ids, row.mask, strict=True)],
    }


def _world(tree: Tree, config: RunConfig) -> Iterator[Row]:
    conversations = _conversations(tree)
    for row in world_rows(tree):
        yield _labelled(row, conversations[row.token_ids])


def _reflections(tree: Tree, config: RunConfig) -> Iterator[Row]:
    for one in reflections(tree, config.update.imitation.min_return, tree_grammar(tree, config.policy.format)):
        node = one.path[-1].child if one.path else tree.root
        assert node is not None
        yield {
            "task_id": tree.task.id,
            "prompt": _message_rows(_read(tree, one.path, node)),
            "completion": _message_rows([Message("assistant", one.turn)]),
        }


def _values(tree: Tree, config: RunConfig) -> Iterator[Row]:
    for row in value_rows(tree, config.update.values):
        yield {
            "task_id": row.task_id,
            "input_ids": row.token_ids,
            "value_positions": row.value_positions,
            "value_targets": row.value_targets,
            "origin": row.origin,
        }


def _transitions(tree: Tree, config: RunConfig) -> Iterator[Row]:
    for step in transitions(tree, config.policy.format):
        row = {field.name: getattr(step, field.name) for field in fields(step) if field.name != "key"}
        yield row | {"history": _message_rows(step.history)}


def _criticality(tree: Tree, config: RunConfig) -> Iterator[Row]:
    drops = criticality(tree)
    for path, node in tree.walk():
        for edge in node.edges:
            if id(edge) in drops or edge.divergence is not None:
                yield {
                    "task_id": tree.task.id,
                    "prompt": _message_rows(_read(tree, path, node)),
                    "action": edge.action.text,
                    "criticality": drops.get(id(edge)),
                    "divergence": edge.divergence,
                    "q": edge.value,
                    "visits": edge.visits,
                    "origin": path_origin((*path, edge)),
                    "depth": len(path),
                }


def _nodes(tree: Tree, config: RunConfig) -> Iterator[Row]:
    numbers = {id(node): number for number, node in enumerate(tree.nodes())}
    for path, node in tree.walk():
        parent = tree.root if len(path) == 1 else path[-2].child if path else None
        yield {
            **_of_tree(tree),
            "node": numbers[id(node)],
            "parent": numbers[id(parent)] if parent else None,
            "edge": parent.edges.index(path[-1]) if parent else None,
            "observation": node.state.messages[-1].content if node.state.messages else "",
            "context_ids": node.context_ids,
            **{name: getattr(node, name) for name in ("value", "terminated", "truncated", "invalid", "origin")},
            "depth": len(path),
        }


def _edges(tree: Tree, config: RunConfig) -> Iterator[Row]:
    numbers = {id(node): number for number, node in enumerate(tree.nodes())}
    for node in tree.nodes():
        for number, edge in enumerate(node.edges):
            yield {
                **_of_tree(tree),
                "node": numbers[id(node)],
                "edge": number,
                "child": numbers[id(edge.child)] if edge.child is not None else None,
                "action": edge.action.text,
                "action_ids": edge.action.token_ids,
                "action_logps": edge.action.logprobs,
                "action_forced": edge.action.forced,
                **{name: getattr(edge, name) for name in ("prior", "visits", "value_sum", "reward")},
            }


def _of_tree(tree: Tree) -> Row:
    return {"task_id": tree.task.id, "seed": tree.seed, "place": tree.place, "policy": tree.policy}


def _conversations(tree: Tree) -> dict[tuple[int, ...], tuple[Message, ...]]:
    """The conversation of every prompt in the tree, by the prompt's token ids. Prompts end at each state and at each
    action that was drawn there."""
    found: dict[tuple[int, ...], tuple[Message, ...]] = {}
    for path, node in tree.walk():
        prompt, messages = tree.prompt_ids(path), _read(tree, path, node)
        found.setdefault(prompt, messages)
        for edge in node.edges:
            found.setdefault(prompt + edge.action.token_ids, _conversation_with(messages, edge))
    return found


def _read(tree: Tree, path: Sequence[Edge], node: Node) -> tuple[Message, ...]:
    """The conversation at ``node``, the end of ``path``, as the policy read it. Notes replace left-out observations."""
    *_, (start, _) = tree.segments(path)
    return as_read(node.state.messages, start.left_out)


def _conversation_with(messages: Sequence[Message], edge: Edge) -> tuple[Message, ...]:
    """The conversation up to and including an action. The action may continue a partial turn."""
    *earlier, last = messages
    prefix = last.content if last.partial else ""
    turn = Message("assistant", prefix + edge.action.text, partial=edge.thought)
    return (*earlier, turn) if last.partial else (*earlier, last, turn)


def _message_rows(messages: Iterable[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def _columns(*names: str) -> pyarrow.Schema:
    return pyarrow.schema([(name, _TYPES[name]) for name in names])


_text, _real, _flag = pyarrow.string(), pyarrow.float64(), pyarrow.bool_()
_ids, _reals, _flags = (pyarrow.list_(each) for each in (pyarrow.int32(), _real, _flag))
_messages = pyarrow.list_(pyarrow.struct({"role": _text, "content": _text}))
_TYPES = {
    **dict.fromkeys(("task_id", "origin", "action", "observation"), _text),
    **dict.fromkeys(("when", "who", "verdict", "text", "note"), _text),
    "shown": pyarrow.list_(_text),
    **dict.fromkeys(("prompt", "chosen", "rejected", "messages", "history", "completion"), _messages),
    **dict.fromkeys(("prompt_ids", "chosen_ids", "rejected_ids", "completion_ids", "input_ids", "labels"), _ids),
    **dict.fromkeys(
        ("ref_chosen_logps", "ref_rejected_logps", "margin", "reward", "criticality", "divergence", "q"), _real
    ),
    **dict.fromkeys(("advantages", "logprobs", "value_targets", "candidate_logps", "targets"), _reals),
    **dict.fromkeys(("chosen_mask", "rejected_mask", "mask"), _flags),
    **dict.fromkeys(("ends_turn", "terminated", "truncated", "invalid"), _flag),
    "value_positions": _ids,
    **{"candidate_ids": pyarrow.list_(_ids), "candidate_masks": pyarrow.list_(_flags)},
    **dict.fromkeys(("depth", "visits", "place", "node", "parent", "edge", "child"), pyarrow.int32()),
    **dict.fromkeys(("value", "prior", "value_sum"), _real),
    **dict.fromkeys(("context_ids", "action_ids", "action_forced"), _ids),
    **{"seed": pyarrow.int64(), "policy": _text, "action_logps": pyarrow.list_(pyarrow.float32())},
}
"""The type of each column. A column has the same type in every view."""

VIEWS: Mapping[str, View] = {
    "pairs": View(
        _columns(
            *("task_id", "prompt", "chosen", "rejected", "ends_turn", "prompt_ids", "chosen_ids", "rejected_ids"),
            *("chosen_mask", "rejected_mask", "ref_chosen_logps", "ref_rejected_logps", "margin", "origin"),
        ),
        _pairs,
        "pairs",
    ),
    "advantages": View(
        _columns("task_id", "prompt_ids", "completion_ids", "mask", "advantages", "logprobs", "origin"),
        _advantages,
        "advantages",
    ),
    "sft": View(_columns("task_id", "messages", "input_ids", "labels", "origin"), _imitation, "imitation"),
    "values": View(_columns("task_id", "input_ids", "value_positions", "value_targets", "origin"), _values, "values"),
    "transitions": View(
        _columns(
            *("task_id", "history", "action", "observation", "reward", "terminated", "truncated", "invalid"),
            *("origin", "depth"),
        ),
        _transitions,
        texts=True,
    ),
    "policy": View(
        _columns(
            *("task_id", "prompt_ids", "candidate_ids", "candidate_masks", "candidate_logps", "targets", "origin"),
        ),
        _policy,
        "targets",
    ),
    "world": View(_columns("task_id", "messages", "input_ids", "labels"), _world),
    "nodes": View(
        _columns(
            *("task_id", "seed", "place", "policy", "node", "parent", "edge", "observation", "context_ids", "value"),
            *("terminated", "truncated", "invalid", "origin", "depth"),
        ),
        _nodes,
        texts=True,
    ),
    "edges": View(
        _columns(
            *("task_id", "seed", "place", "policy", "node", "edge", "child", "action"),
            *("action_ids", "action_logps", "action_forced"),
            *("prior", "visits", "value_sum", "reward"),
        ),
        _edges,
        texts=True,
    ),
    "reflection": View(_columns("task_id", "prompt", "completion"), _reflections, "imitation", texts=True),
    "criticality": View(
        _columns("task_id", "prompt", "action", "criticality", "divergence", "q", "visits", "origin", "depth"),
        _criticality,
        texts=True,
    ),
}
USUAL = ("pairs", "advantages", "sft", "values", "transitions")
"""The views that are exported by default."""

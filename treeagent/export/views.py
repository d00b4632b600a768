"""Each view of a tree as rows of plain values, in TRL's dataset formats where TRL has one."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pyarrow

from treeagent.config import RunConfig
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Message, UserError, as_read
from treeagent.views.advantages import advantage_rows, advantages
from treeagent.views.early_experience import reflections, world_rows
from treeagent.views.imitation import imitation_rows
from treeagent.views.pairs import preference_pairs
from treeagent.views.tokens import TokenRow
from treeagent.views.transitions import transitions, tree_grammar
from treeagent.views.values import value_rows

Row = dict[str, Any]
_IGNORED = -100
"""The label with which torch and TRL leave a token out of the loss."""


@dataclass(frozen=True, slots=True)
class View:
    """One config of the dataset: its columns, and how a tree becomes rows."""

    columns: pyarrow.Schema
    rows: Callable[[Tree, RunConfig], Iterator[Row]]
    section: str = ""
    """The section of ``update`` that the rows depend on, if any."""
    texts: bool = False
    """Whether the rows hold texts only, so that trees without token ids have them too."""


def _pairs(tree: Tree, config: RunConfig) -> Iterator[Row]:
    starts = _starts(tree)
    for pair in preference_pairs(tree, config.update.pairs, config.search.critic_weight):
        prompt = _said(starts, pair.context_ids)
        if prompt[-1].partial:  # both sides continue one turn: show it from its beginning
            prompt = prompt[:-1]
        chosen, rejected = (
            _said(starts, pair.context_ids + side.token_ids)[len(prompt) :] for side in (pair.chosen, pair.rejected)
        )
        yield {
            "task_id": pair.task_id,
            "prompt": _talk(prompt),
            "chosen": _talk(chosen),
            "rejected": _talk(rejected),
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
    starts = _starts(tree)
    for row in imitation_rows(tree, config.update.imitation):
        messages = _said(starts, row.token_ids)
        if not any(row.mask):  # of a path's end alone, where its prompt starts anew
            continue
        while messages[-1].role != "assistant":  # what follows the last action is not imitated
            messages = messages[:-1]
        yield _labelled(row, messages) | {"origin": row.origin}


def _labelled(row: TokenRow, messages: Sequence[Message]) -> Row:
    return {
        "task_id": row.task_id,
        "messages": _talk(messages),
        "input_ids": row.token_ids,
        "labels": [token if kept else _IGNORED for token, kept in zip(row.token_ids, row.mask, strict=True)],
    }


def _world(tree: Tree, config: RunConfig) -> Iterator[Row]:
    starts = _starts(tree)
    for row in world_rows(tree):
        yield _labelled(row, _said(starts, row.token_ids))


def _reflections(tree: Tree, config: RunConfig) -> Iterator[Row]:
    for one in reflections(tree, config.update.imitation.min_return, tree_grammar(tree, config.policy.format)):
        node = one.path[-1].child if one.path else tree.root
        assert node is not None
        *_, (start, _) = tree.segments(one.path)
        yield {
            "task_id": tree.task.id,
            "prompt": _talk(as_read(node.state.messages, start.left_out)),
            "completion": _talk([Message("assistant", one.turn)]),
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
        yield row | {"history": _talk(step.history)}


def _starts(tree: Tree) -> list[Node]:
    """The nodes at which a prompt starts anew, the root first."""
    return [node for node in tree.nodes() if node is tree.root or node.left_out]


def _said(starts: Sequence[Node], ids: tuple[int, ...]) -> tuple[Message, ...]:
    """The conversation as these tokens hold it. It ends at a state or with an action.

    Raises:
        UserError: no path of the tree has these tokens, as where its actions have none.
    """
    stack = [
        (node, len(node.context_ids), node.left_out)
        for node in reversed(starts)
        if ids and ids[: len(node.context_ids)] == node.context_ids
    ]
    while stack:
        node, read, left_out = stack.pop()
        messages = as_read(node.state.messages, left_out)
        if read == len(ids):
            return messages
        for edge in node.edges:
            end = read + len(edge.action.token_ids)
            if end == read or ids[read:end] != edge.action.token_ids:
                continue
            if end == len(ids):
                return _told(messages, edge)
            child = edge.child
            if child is not None and not child.left_out and ids[end:][: len(child.context_ids)] == child.context_ids:
                stack.append((child, end + len(child.context_ids), left_out))
    task = starts[0].state.task.id
    raise UserError(f"no path of the tree of task {task} has the tokens of its row: let a model sample its actions")


def _told(messages: Sequence[Message], edge: Edge) -> tuple[Message, ...]:
    """The conversation up to an action and with it. The action may continue a turn."""
    *earlier, last = messages
    begun = last.content if last.partial else ""
    said = Message("assistant", begun + edge.action.text, partial=edge.thought)
    return (*earlier, said) if last.partial else (*earlier, last, said)


def _talk(messages: Iterable[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def _columns(*names: str) -> pyarrow.Schema:
    return pyarrow.schema([(name, _TYPES[name]) for name in names])


_text, _real, _flag = pyarrow.string(), pyarrow.float64(), pyarrow.bool_()
_ids, _reals, _flags = (pyarrow.list_(each) for each in (pyarrow.int32(), _real, _flag))
_messages = pyarrow.list_(pyarrow.struct({"role": _text, "content": _text}))
_TYPES = {
    **dict.fromkeys(("task_id", "origin", "action", "observation"), _text),
    **dict.fromkeys(("prompt", "chosen", "rejected", "messages", "history", "completion"), _messages),
    **dict.fromkeys(("prompt_ids", "chosen_ids", "rejected_ids", "completion_ids", "input_ids", "labels"), _ids),
    **dict.fromkeys(("ref_chosen_logps", "ref_rejected_logps", "margin", "reward"), _real),
    **dict.fromkeys(("advantages", "logprobs", "value_targets"), _reals),
    **dict.fromkeys(("chosen_mask", "rejected_mask", "mask"), _flags),
    **dict.fromkeys(("ends_turn", "terminated", "truncated", "invalid"), _flag),
    "value_positions": _ids,
    "depth": pyarrow.int32(),
}
"""The type of a column, which is the same in every view."""

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
    "world": View(_columns("task_id", "messages", "input_ids", "labels"), _world),
    "reflection": View(_columns("task_id", "prompt", "completion"), _reflections, "imitation", texts=True),
}
USUAL = ("pairs", "advantages", "sft", "values", "transitions")
"""The views that are exported when none is named."""

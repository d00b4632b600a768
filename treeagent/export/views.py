"""Each view of a tree as rows of plain values, in TRL's dataset formats where TRL has one."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    loosen: tuple[str, ...] = ()
    """Settings of that section which leave rows out."""
    asked: bool = False
    """Whether it is exported only when it is named."""
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
        yield {
            "task_id": row.task_id,
            "prompt_ids": row.prompt_ids,
            "completion_ids": row.completion_ids,
            "mask": row.mask,
            "advantages": row.advantages,
            "logprobs": row.logprobs,
            "origin": row.origin,
        }


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
        yield {
            "task_id": step.task_id,
            "origin": step.origin,
            "depth": step.depth,
            "history": _talk(step.history),
            "action": step.action,
            "observation": step.observation,
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "invalid": step.invalid,
        }


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


def _schema(**columns: pyarrow.DataType) -> pyarrow.Schema:
    return pyarrow.schema(columns.items())


_text, _real, _flag = pyarrow.string(), pyarrow.float64(), pyarrow.bool_()
_ids, _reals, _flags = (pyarrow.list_(each) for each in (pyarrow.int32(), _real, _flag))
_messages = pyarrow.list_(pyarrow.struct({"role": _text, "content": _text}))

VIEWS: Mapping[str, View] = {
    "pairs": View(
        _schema(
            task_id=_text,
            prompt=_messages,
            chosen=_messages,
            rejected=_messages,
            ends_turn=_flag,
            prompt_ids=_ids,
            chosen_ids=_ids,
            rejected_ids=_ids,
            chosen_mask=_flags,
            rejected_mask=_flags,
            ref_chosen_logps=_real,
            ref_rejected_logps=_real,
            margin=_real,
            origin=_text,
        ),
        _pairs,
        "pairs",
        ("min_margin", "min_visits"),
    ),
    "advantages": View(
        _schema(
            task_id=_text,
            prompt_ids=_ids,
            completion_ids=_ids,
            mask=_flags,
            advantages=_reals,
            logprobs=_reals,
            origin=_text,
        ),
        _advantages,
        "advantages",
        ("min_visits",),
    ),
    "sft": View(
        _schema(task_id=_text, messages=_messages, input_ids=_ids, labels=_ids, origin=_text),
        _imitation,
        "imitation",
        ("min_return",),
    ),
    "values": View(
        _schema(task_id=_text, input_ids=_ids, value_positions=_ids, value_targets=_reals, origin=_text),
        _values,
        "values",
    ),
    "transitions": View(
        _schema(
            task_id=_text,
            origin=_text,
            depth=pyarrow.int32(),
            history=_messages,
            action=_text,
            observation=_text,
            reward=_real,
            terminated=_flag,
            truncated=_flag,
            invalid=_flag,
        ),
        _transitions,
        texts=True,
    ),
    "world": View(
        _schema(task_id=_text, messages=_messages, input_ids=_ids, labels=_ids),
        _world,
        asked=True,
    ),
    "reflection": View(
        _schema(task_id=_text, prompt=_messages, completion=_messages),
        _reflections,
        "imitation",
        ("min_return",),
        asked=True,
        texts=True,
    ),
}
USUAL = tuple(name for name, view in VIEWS.items() if not view.asked)
"""The views that are exported when none is named."""

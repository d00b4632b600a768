"""The rows that an update of a policy learns from, made from stored trees."""

import random
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from treeagent.agent.checkpoint import Checkpoint
from treeagent.config import Method, RunConfig
from treeagent.generators.chat import ChatFormat
from treeagent.pipeline.build import make_chat
from treeagent.pipeline.trees import trees_by_task
from treeagent.search.node import Tree, finished_paths, path_return
from treeagent.types import WHOLE, Share, UserError, derive_seed
from treeagent.views.advantages import AdvantageConfig, AdvantageRow, advantage_rows, advantages
from treeagent.views.imitation import imitation_rows
from treeagent.views.pairs import preference_pairs
from treeagent.views.policy import policy_rows
from treeagent.views.spilled import Joined, Picked, Spilled
from treeagent.views.tokens import TokenRow
from treeagent.views.values import is_read, value_rows

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class TrainJob:
    """One update of a checkpoint from stored trees."""

    config: RunConfig
    checkpoint: Path
    method: Method
    trees: Path
    names: Sequence[str]
    """Names of the shards in ``trees`` to learn from."""
    out: Path
    """Folder of the updated checkpoint."""

    @property
    def scratch(self) -> Path:
        """Folder of the trainer's own checkpoints, from which an interrupted update resumes."""
        return self.out.with_name(f".{self.out.name}")


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """The training rows that trees give a policy and its value head."""

    rows: Sequence[Any]
    """Rows of the method's view, kept on disk."""
    values: list[TokenRow]
    """The sampled rows with value targets."""


def training_rows(job: TrainJob, checkpoint: Checkpoint, returns: tuple[float, float]) -> TrainingRows:
    """The rows that a job learns from. Only the trees of one task are in memory at a time, and the rows are kept on the
    disk of the new checkpoint, so memory hardly grows with the number of trees.

    Each of several processes that train together reads its share of the tasks, and all open the rows that the others
    made. So they need a disk that all share.

    Args:
        returns: range of the value head.

    Raises:
        UserError: another model searched the trees, or a setting does not fit.
    """
    config, chat = job.config, make_chat(checkpoint, job.config)
    parts = [_rows_of_share(job, chat, returns, WHOLE)]
    rows, values = _in_order([part.rows for part in parts]), _in_order([part.values for part in parts])
    return TrainingRows(rows, sample_rows(values, config))


class _Placed(Generic[Row]):
    """Rows on disk, each with the place at which it stands among all rows."""

    def __init__(self, folder: Path, name: str) -> None:
        self.rows, self.places = Spilled[Row](folder, name), array("q")

    def add(self, place: int, rows: Iterable[Row]) -> None:
        """Add rows at a place."""
        for row in rows:
            self.rows.append(row)
            self.places.append(place)


def _in_order(parts: Sequence[_Placed[Row]]) -> Sequence[Row]:
    """The rows of all parts in order of their places; rows of one place in the order in which they were added."""
    places = np.concatenate([np.frombuffer(part.places, dtype=np.int64) for part in parts])
    order = np.argsort(places, kind="stable")
    return Picked(Joined([part.rows for part in parts]), array("q", order.tobytes()))


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows that one process makes."""

    rows: _Placed[Any]
    values: _Placed[TokenRow]


def _rows_of_share(job: TrainJob, chat: ChatFormat, returns: tuple[float, float], share: Share) -> _Part:
    """The rows of a share of the tasks."""
    names = [f"{kind}-{share.index}" if share.count > 1 else "" for kind in ("rows", "values")]
    folder = job.scratch if share.count > 1 else job.out.parent
    rows, values = _Placed[Any](folder, names[0]), _Placed[TokenRow](folder, names[1])
    for places, trees in trees_by_task(job.trees, job.names, share):
        for place, tree in zip(places, trees, strict=True):
            refuse_foreign(tree, chat, job)
            read_ends([tree], chat)
            values.add(place, clipped_value_rows(tree, job.config, returns))
        for place, of_method in method_rows(job, list(zip(places, trees, strict=True))):
            rows.add(place, of_method)
    return _Part(rows, values)


def method_rows(job: TrainJob, trees: Sequence[tuple[int, Tree]]) -> Iterator[tuple[int, Iterable[object]]]:
    """Yield the rows of a job's method for all trees of one task, as pairs (place, rows).

    Args:
        trees: the trees of the task with their places, which order the rows of all tasks. A view that compares the
            trees of a task with each other yields its rows at the place of the first tree.
    """
    settings = job.config.update
    match job.method:
        case "rft":
            yield from ((place, imitation_rows(tree, settings.imitation)) for place, tree in trees)
        case "distil":
            yield from ((place, policy_rows(tree, settings.targets)) for place, tree in trees)
        case "dpo" if trees:
            group = [tree for _, tree in trees]
            yield trees[0][0], preference_pairs(group, settings.pairs)
        case "grpo" if trees:
            yield trees[0][0], scored_rows([tree for _, tree in trees], settings.advantages)
        case _:
            pass


def refuse_foreign(tree: Tree, chat: ChatFormat, job: TrainJob) -> None:
    """Check that a tree has the token ids of the checkpoint that is trained.

    Raises:
        UserError: ``chat``, with the instructions and demonstrations of the settings, encodes the tree's task to other
            ids than those stored in the tree.
    """
    if tree.root.context_ids and chat.prompt_ids(tree.root.state.messages) != tree.root.context_ids:
        raise UserError(
            f"the tokenizer or chat template of {job.checkpoint} writes task {tree.task.id} in {job.trees} in "
            "other tokens than the policy that searched it: update that policy, with its policy.instructions, "
            "policy.shots and policy.format, or collect trees with this one"
        )


def read_ends(trees: Sequence[Tree], chat: ChatFormat) -> None:
    """Add the token ids of final states that lack them. A search without a value head does not tokenise final states,
    but fitting a head needs their ids."""
    for tree in trees:
        for node in tree.nodes():
            if node.final and node.state.messages and not is_read(node):
                reading = chat.read(node.state.messages)
                node.context_ids, node.left_out = chat.added_ids(reading), reading.left_out


def sample_value_rows(
    trees: Iterable[Tree], config: RunConfig, returns: tuple[float, float], folder: Path | None = None
) -> list[TokenRow]:
    """At most ``update.value_rows`` of the ``clipped_value_rows`` of trees, drawn uniformly by the run's seed.

    Args:
        folder: all rows are kept on the disk of this folder while they are drawn; by default the system's temporary
            folder.
    """
    rows = Spilled[TokenRow](folder)
    for tree in trees:
        for row in clipped_value_rows(tree, config, returns):
            rows.append(row)
    return sample_rows(rows, config)


def sample_rows(rows: Sequence[TokenRow], config: RunConfig) -> list[TokenRow]:
    """At most ``update.value_rows`` rows, drawn uniformly by the run's seed."""
    indices = array("q", range(len(rows)))
    random.Random(derive_seed(config.seed, "value_rows")).shuffle(indices)
    return [rows[index] for index in indices[: config.update.value_rows]]


def clipped_value_rows(tree: Tree, config: RunConfig, returns: tuple[float, float]) -> Iterator[TokenRow]:
    """The rows of a tree with value targets, clipped to the range ``returns`` of the value head.

    With rewards along the way, r + V may leave the range, because V is an estimate: such targets are clipped. Outcomes
    of finished paths are not clipped, so that ``fit_value`` raises if they leave the range. With ``rewards.function``
    they are clipped, too, because the head may be older than the function.
    """
    path_returns = [] if config.rewards.function else [path_return(path) for path in finished_paths(tree)]
    low, high = min([returns[0], *path_returns]), max([returns[1], *path_returns])
    for row in value_rows(tree, config.update.values):
        clipped = tuple(min(max(target, low), high) for target in row.value_targets)
        yield replace(row, value_targets=clipped)


def scored_rows(trees: Sequence[Tree], config: AdvantageConfig) -> Iterator[AdvantageRow]:
    """The rows of all trees of a task. Advantages are computed over these trees together."""
    scored = advantages(trees, config)
    for tree in trees:
        yield from advantage_rows(tree, scored)

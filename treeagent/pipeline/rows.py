"""The rows that an update of a policy learns from, made from stored trees."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from treeagent.agent.checkpoint import Checkpoint
from treeagent.config import Method, RunConfig
from treeagent.generators.chat import ChatFormat
from treeagent.pipeline.build import make_chat
from treeagent.pipeline.trees import read_trees, trees_by_task
from treeagent.search.node import Tree, finished_paths, path_return
from treeagent.types import UserError, derive_seed
from treeagent.views.advantages import AdvantageConfig, AdvantageRow, advantage_rows, advantages
from treeagent.views.imitation import imitation_rows
from treeagent.views.pairs import preference_pairs, self_pairs
from treeagent.views.policy import policy_rows
from treeagent.views.tokens import TokenRow
from treeagent.views.values import is_read, value_rows


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

    @property
    def scratch(self) -> Path:
        """Folder of the trainer's own checkpoints, from which an update resumes."""
        return self.out.with_name(f".{self.out.name}")


def policy_training_rows(job: TrainJob, checkpoint: Checkpoint) -> Iterator[Any]:
    """Yield the rows of the job's method."""
    settings, chat = job.config.update, make_chat(checkpoint, job.config)
    if job.method in ("rft", "distil"):
        for tree in read_trees(job.trees, job.names):
            refuse_foreign(tree, chat, job)
            rft = job.method == "rft"
            yield from imitation_rows(tree, settings.imitation) if rft else policy_rows(tree, settings.targets)
        return
    for trees in trees_by_task(job.trees, job.names):
        for tree in trees:
            refuse_foreign(tree, chat, job)
        if job.method == "grpo":
            yield from scored_rows(trees, settings.advantages)
            continue
        yield from preference_pairs(trees, settings.pairs)
        if "sft" in settings.dpo.loss_type and settings.pairs.rule != "trajectory":  # whose chosen paths are whole
            for tree in trees:
                yield from self_pairs(imitation_rows(tree, settings.imitation))


def refuse_foreign(tree: Tree, chat: ChatFormat, job: TrainJob) -> None:
    """Check that a tree has the token ids of the checkpoint that is trained."""
    if tree.root.context_ids and chat.prompt_ids(tree.root.state.messages) != tree.root.context_ids:
        raise UserError(
            f"the tokenizer or chat template of {job.checkpoint} writes task {tree.task.id} in {job.trees} in "
            "other tokens than the policy that searched it: update that policy, with its policy.instructions, "
            "policy.shots and policy.format, or collect trees with this one"
        )


def scored_rows(trees: Sequence[Tree], config: AdvantageConfig) -> Iterator[AdvantageRow]:
    """The rows of all trees of a task, whose advantages are computed together."""
    scored = advantages(trees, config)
    for tree in trees:
        yield from advantage_rows(tree, scored)


def read_ends(tree: Tree, chat: ChatFormat) -> None:
    """Add the token ids of final states, which a search without a value head lacks and fitting one needs."""
    for node in tree.nodes():
        if node.final and node.state.messages and not is_read(node):
            reading = chat.read(node.state.messages)
            node.context_ids, node.left_out = reading.added_ids, reading.left_out


def sample_value_rows(
    trees: Iterable[Tree], config: RunConfig, returns: tuple[float, float], chat: ChatFormat | None = None
) -> list[TokenRow]:
    """At most ``update.value_rows`` rows with value targets, clipped to the range ``returns`` of the head, as r + V may
    leave it. Outcomes are not clipped, so that ``fit_value`` refuses them, unless a ``rewards.function`` is newer
    than the head. ``chat`` reads ends that the search did not read."""
    rows = list[TokenRow]()
    for tree in trees:
        if chat is not None:
            read_ends(tree, chat)
        path_returns = [] if config.rewards.function else [path_return(path) for path in finished_paths(tree)]
        low, high = min([returns[0], *path_returns]), max([returns[1], *path_returns])
        for row in value_rows(tree, config.update.values):
            rows.append(replace(row, value_targets=tuple(min(max(each, low), high) for each in row.value_targets)))
    return sample_rows(rows, config)


def sample_rows(rows: Sequence[TokenRow], config: RunConfig) -> list[TokenRow]:
    """At most ``update.value_rows`` rows, drawn uniformly by the run's seed."""
    indices = list(range(len(rows)))
    random.Random(derive_seed(config.seed, "value_rows")).shuffle(indices)
    return [rows[index] for index in indices[: config.update.value_rows]]

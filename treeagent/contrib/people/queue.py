"""The queue of items for reviewers: pairs of siblings and episodes, the most doubtful first."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import combinations, islice
from pathlib import Path
from statistics import NormalDist
from typing import Literal

from treeagent.contrib.people.marks import state_hash
from treeagent.pipeline.folder import Run
from treeagent.pipeline.report.describe import is_solved, steps
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.record import from_record
from treeagent.store import read_as, shard_names, shard_place, shards
from treeagent.types import derive_seed

_MOST_PER_TREE = 3
"""Most pairs of one tree in the queue, so that a large tree does not fill it."""


@dataclass(frozen=True, slots=True)
class Item:
    """A pair of siblings or an episode, with the place of its tree on disk."""

    id: str
    """A hash of the conversation and the actions, so that equal items of different trees have equal ids."""
    kind: Literal["pair", "episode"]
    task_id: str
    state: str
    texts: tuple[str, ...]
    """Texts of the two actions, or of all actions of the episode."""
    doubt: float
    rank: int
    """Number of items of the same tree or task that come before this one."""
    name: str
    index: int
    line: int
    """Line of the tree in the shard ``index`` of ``name``."""
    path: tuple[int, ...] = ()
    """For a pair, the indices of the edges that lead from the root to its state."""


def review_queue(run: Run) -> list[Item]:
    """The items of a run, sorted by rank, then by falling doubt: the first item of every tree and task comes before any
    second item. Only one tree at a time is in memory."""
    items: dict[str, Item] = {}
    for name in run.collections():
        for index, line, tree in _stored(run.trees, name):
            for item in pair_items(tree, name, index, line, run.config.environment.returns):
                items.setdefault(item.id, item)
    for item in _episode_items(run):
        items.setdefault(item.id, item)
    return sorted(items.values(), key=lambda item: (item.rank, -item.doubt, item.id))


def load(run: Run, item: Item) -> Tree:
    """Read the tree of an item from disk."""
    folder = run.trees if item.kind == "pair" else run.episodes
    records = read_as(dict, folder, item.name, item.index)
    return from_record(next(islice(records, item.line, None)))


def node_at(tree: Tree, path: Sequence[int]) -> Node:
    """The node that the edges with the indices ``path`` lead to from the root."""
    node = tree.root
    for index in path:
        child = node.edges[index].child
        assert child is not None
        node = child
    return node


def _stored(folder: Path, name: str) -> Iterator[tuple[int, int, Tree]]:
    for file in shards(folder, name):
        _, index = shard_place(file)
        for line, tree in enumerate(read_as(from_record, folder, name, index)):
            yield index, line, tree


def order_in_doubt(first: Edge, second: Edge, returns: tuple[float, float] = (0.0, 1.0)) -> float:
    """The probability that Q has two tried siblings in the wrong order: Φ(-|ΔQ| / (σ √(1/N₁ + 1/N₂))), where σ is half
    the range of ``returns``, the greatest standard deviation of returns."""
    low, high = returns
    spread = (high - low) / 2 * math.sqrt(1 / first.visits + 1 / second.visits)
    return NormalDist().cdf(-abs(first.value - second.value) / spread)


def pair_items(
    tree: Tree, name: str, index: int, line: int, returns: tuple[float, float] = (0.0, 1.0)
) -> Iterator[Item]:
    """The most doubtful pairs of a tree: at most one per state, and ``_MOST_PER_TREE`` in all. The doubt is
    ``order_in_doubt`` times the share of simulations at the state."""
    found = list[Item]()
    stack: list[tuple[Node, tuple[int, ...]]] = [(tree.root, ())]
    while stack:
        node, path = stack.pop()
        stack.extend((edge.child, (*path, at)) for at, edge in enumerate(node.edges) if edge.child is not None)
        tried = [edge for edge in node.edges if edge.visits]
        pairs = [pair for pair in combinations(tried, 2) if pair[0].action.text != pair[1].action.text]
        if pairs:
            first, second = max(pairs, key=lambda pair: order_in_doubt(pair[0], pair[1], returns))
            doubt = order_in_doubt(first, second, returns) * node.visits / tree.root.visits
            state, texts = state_hash(tree.task.id, node.state.messages), (first.action.text, second.action.text)
            known = _id("pair", state, texts)
            found.append(Item(known, "pair", tree.task.id, state, texts, doubt, 0, name, index, line, path))
    for rank, item in enumerate(nlargest(_MOST_PER_TREE, found, key=lambda item: item.doubt)):
        yield replace(item, rank=rank)


def _episode_items(run: Run) -> Iterator[Item]:
    """The episodes that ended, failed ones of a task before solved ones. The doubt is 2p(1 - p), with p the share of
    the task's episodes that succeeded."""
    solved: dict[str, list[bool]] = {}
    items: list[tuple[bool, Item]] = []
    for name in shard_names(run.episodes):
        for index, line, episode in _stored(run.episodes, name):
            path = steps(episode)
            end = path[-1].child if path else None
            if end is None or episode.error or not end.ended:
                continue
            success, texts = is_solved(episode), tuple(edge.action.text for edge in path)
            solved.setdefault(episode.task.id, []).append(success)
            state = state_hash(episode.task.id, end.state.messages)
            known = _id("episode", state, texts)
            item = Item(known, "episode", episode.task.id, state, texts, 0.0, 0, name, index, line)
            items.append((success, item))
    ranks: dict[str, int] = {}
    for _, item in sorted(items, key=lambda each: each[0]):
        share = sum(solved[item.task_id]) / len(solved[item.task_id])
        rank = ranks[item.task_id] = ranks.get(item.task_id, -1) + 1
        yield replace(item, rank=rank, doubt=2 * share * (1 - share))


def _id(kind: str, state: str, texts: Sequence[str]) -> str:
    ordered = sorted(texts) if kind == "pair" else texts
    return f"{derive_seed(kind, state, *ordered):016x}"


def shown_order(who: str, item: Item) -> tuple[int, ...]:
    """The order in which a reviewer sees the actions of an item. For pairs it is random, seeded by both arguments."""
    indices = tuple(range(len(item.texts)))
    return indices[::-1] if item.kind == "pair" and derive_seed("side", who, item.id) % 2 else indices

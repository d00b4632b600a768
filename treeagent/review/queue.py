"""What reviewers are asked first: pairs of siblings and episodes whose order or outcome is most in doubt."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import combinations
from statistics import NormalDist
from typing import Literal

from treeagent.marks import state_hash
from treeagent.report.episodes import is_solved, steps
from treeagent.run.folder import Run
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.record import from_record
from treeagent.store import read_as, read_line, shard_names, shard_place, shards
from treeagent.types import derive_seed
from treeagent.views.values import best_return, found_success

Kind = Literal["pairs", "episodes", "both"]
_MOST_PER_TREE = 3
"""Pairs of one tree in the queue, so that no large tree fills it."""


@dataclass(frozen=True, slots=True)
class Item:
    """A pair of siblings or an episode, and where its tree stands on disk."""

    id: str
    """The same wherever the same actions stand behind the same conversation."""
    kind: Literal["pair", "episode"]
    task_id: str
    state: str
    texts: tuple[str, ...]
    """The two actions, or all actions of the episode."""
    doubt: float
    rank: int
    """How many items of the same tree or task are more in doubt."""
    name: str
    index: int
    line: int
    """Shard and line of the tree."""
    path: tuple[int, ...] = ()
    """Of a pair, the indices of the edges that lead from the root to its state."""
    found_not_taken: bool = False


def review_queue(run: Run, kind: Kind = "both") -> list[Item]:
    """The items of a run, those most in doubt first. The first items of all trees and tasks come before their second
    ones. One tree at a time is in memory."""
    items: dict[str, Item] = {}
    if kind != "episodes":
        for name in run.collections():
            for index, line, tree in _stored(run, name, "trees"):
                for item in pair_items(tree, name, index, line, run.config.environment.returns):
                    items.setdefault(item.id, item)
    if kind != "pairs":
        for item in _episode_items(run):
            items.setdefault(item.id, item)
    return sorted(items.values(), key=lambda item: (item.rank, -item.doubt, item.id))


def load(run: Run, item: Item) -> Tree:
    """The tree of an item."""
    folder = run.trees if item.kind == "pair" else run.episodes
    return from_record(read_line(folder, item.name, item.index, item.line))


def node_at(tree: Tree, path: Sequence[int]) -> Node:
    """The state behind the edges of these indices."""
    node = tree.root
    for place in path:
        child = node.edges[place].child
        assert child is not None
        node = child
    return node


def _stored(run: Run, name: str, kind: Literal["trees", "episodes"]) -> Iterator[tuple[int, int, Tree]]:
    folder = run.trees if kind == "trees" else run.episodes
    for file in shards(folder, name):
        _, index = shard_place(file)
        for line, tree in enumerate(read_as(from_record, folder, name, index)):
            yield index, line, tree


def order_in_doubt(first: Edge, second: Edge, returns: tuple[float, float] = (0.0, 1.0)) -> float:
    """The chance that two tried siblings are in the wrong order: Φ(-|ΔQ| / (σ √(1/N₁ + 1/N₂))).

    Q of N visits is taken to be normal about the true value, with the greatest standard deviation that returns of this
    range can have, σ = (high - low) / 2. So the chance is 1/2 for equal Q, and falls with the margin and the visits.
    """
    low, high = returns
    spread = (high - low) / 2 * math.sqrt(1 / first.visits + 1 / second.visits)
    return NormalDist().cdf(-abs(first.value - second.value) / spread)


def pair_items(
    tree: Tree, name: str, index: int, line: int, returns: tuple[float, float] = (0.0, 1.0)
) -> Iterator[Item]:
    """The pairs of a tree that are most in doubt, one at each state and few in all.

    The doubt of a pair is ``order_in_doubt`` times the share of the simulations that passed its state. It is greater by
    1 where one action leads to a success and search visited the other most: found, but not taken. Two actions below
    which everything is known to be equal are left out.
    """
    total, won = max(tree.root.visits, 1), found_success(tree)
    found: list[tuple[float, Item]] = []
    stack: list[tuple[Node, tuple[int, ...]]] = [(tree.root, ())]
    while stack:
        node, path = stack.pop()
        stack.extend((edge.child, (*path, at)) for at, edge in enumerate(node.edges) if edge.child is not None)
        if pair := _most_doubtful(tree, node, returns, won):
            doubt, first, second, missed = pair
            doubt = doubt * node.visits / total + missed
            state, texts = state_hash(tree.task.id, node.state.messages), (first.action.text, second.action.text)
            known = _id("pair", state, texts)
            item = Item(known, "pair", tree.task.id, state, texts, doubt, 0, name, index, line, path, missed)
            found.append((doubt, item))
    best = nlargest(_MOST_PER_TREE, found, key=lambda each: each[0])
    for rank, (_, item) in enumerate(best):
        yield replace(item, rank=rank)


def _most_doubtful(
    tree: Tree, node: Node, returns: tuple[float, float], won: Mapping[int, bool]
) -> tuple[float, Edge, Edge, bool] | None:
    tried = [edge for edge in node.edges if edge.visits]
    if len(tried) < 2:
        return None
    taken = max(tried, key=lambda edge: edge.visits)
    known = {id(edge): best_return(edge, tree.discount) for edge in tried}
    pairs = []
    for first, second in combinations(tried, 2):
        settled = first.exhausted and second.exhausted and known[id(first)] == known[id(second)]
        if first.action.text != second.action.text and not settled:
            other = second if first is taken else first
            missed = taken in (first, second) and won.get(id(other.child), False) and not won.get(id(taken.child))
            pairs.append((order_in_doubt(first, second, returns), first, second, missed))
    return max(pairs, key=lambda pair: (pair[3], pair[0]), default=None)


def _episode_items(run: Run) -> Iterator[Item]:
    """Episodes by the chance 2p(1 - p) that two episodes of their task differ in success, where p is the share of the
    task's episodes that succeeded. Failed ones come before solved ones of the same task. An episode that broke off has
    no outcome to judge."""
    solved: dict[str, list[bool]] = {}
    items: list[tuple[bool, Item]] = []
    for name in shard_names(run.episodes):
        for index, line, episode in _stored(run, name, "episodes"):
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
    """The order in which a reviewer sees the actions of a pair: random over items and reviewers, the same each time."""
    places = tuple(range(len(item.texts)))
    return places[::-1] if item.kind == "pair" and derive_seed("side", who, item.id) % 2 else places

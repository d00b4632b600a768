"""Data for training and auditing a reward model: ends of episodes with their returns, and pairs of conversations, with
the tokens that the policy read and sampled. Imagined steps are left out."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from treeagent.search.node import Edge, Tree, finished_paths, outcome, path_origin, reaches
from treeagent.types import derive_seed
from treeagent.views.pairs import PairConfig, compared_siblings
from treeagent.views.values import is_read

_MOST_PER_TASK = 16
"""Maximum number of pairs of ends per task. A task with many ends would have hundreds of pairs, and most add little."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of an episode, as the policy read it."""

    task_id: str
    token_ids: tuple[int, ...]
    """The whole conversation."""
    paid: float
    """The environment's own return, in reward units."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two conversations about one task; the first is preferred."""

    task_id: str
    chosen_ids: tuple[int, ...]
    rejected_ids: tuple[int, ...]
    margin: float
    """Difference in return between two ends, or in Q between two siblings; above 0, in reward units."""


def ends(tree: Tree) -> Iterator[End]:
    """The finished paths of a tree with a known reward and known tokens."""
    for path in finished_paths(tree):
        last = path[-1].child
        assert last is not None
        if path[-1].outcome is not None and path_origin(path) == "real" and is_read(last):
            yield End(tree.task.id, tree.prompt_ids(path), outcome(path))


def comparisons(trees: Sequence[Tree], config: PairConfig) -> Iterator[Comparison]:
    """The pairs of one task: at most 16 pairs of ends with returns that differ by at least ``config.min_margin``, and
    the siblings of ``compared_siblings``."""
    found = [end for tree in trees for end in ends(tree)]
    wide = [
        (better, worse)
        for first, second in combinations(found, 2)
        for better, worse in [(first, second) if first.paid > second.paid else (second, first)]
        if reaches(better.paid - worse.paid, config.min_margin) and better.token_ids != worse.token_ids
    ]
    if len(wide) > _MOST_PER_TASK:
        wide = random.Random(derive_seed("comparisons", found[0].task_id)).sample(wide, _MOST_PER_TASK)
    for better, worse in wide:
        yield Comparison(better.task_id, better.token_ids, worse.token_ids, better.paid - worse.paid)
    for tree in trees:
        for path, margin, chosen, rejected in compared_siblings(tree, config):
            if all(_is_compared(edge) for edge in (*path, chosen, rejected)):
                first, second = (tree.prompt_ids([*path, edge]) for edge in (chosen, rejected))
                yield Comparison(tree.task.id, first, second, margin)


def _is_compared(edge: Edge) -> bool:
    child = edge.child
    return child is not None and child.origin == "real" and not child.unknown and is_read(child)

"""Preference pairs for DPO, a pure view of search trees: siblings (Agent Q, algorithm 1) or whole paths."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import compress, product
from operator import itemgetter
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as config_dataclass

from treeagent.search.node import Edge, Tree, path_origin, path_return, reaches
from treeagent.search.puct import merge_key
from treeagent.types import Origin
from treeagent.views.tokens import TokenRow, require_logprobs, turn_tokens

_MOST_PER_NODE = 4
"""The rule "all" keeps at most this many pairs per node, those with the widest margin. With more, a few nodes would
fill a batch."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """The text after a prompt: one action, or a path of actions with the observations between them."""

    text: str
    """The policy's turns, separated by line breaks."""
    token_ids: tuple[int, ...]
    """The ids as sampled and read, including observations."""
    mask: tuple[bool, ...]
    """True if the pair compares the token: not at observations, and not at refused calls on a preferred path."""
    logprobs: tuple[float, ...]
    """Behaviour log-probabilities in nats, aligned with ``token_ids``; 0 where ``mask`` is False."""

    @property
    def logprob(self) -> float:
        """Sum of log μ over the compared tokens, in nats."""
        return sum(compress(self.logprobs, self.mask))


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two continuations of one prompt; the first is preferred."""

    task_id: str
    context_ids: tuple[int, ...]
    """The whole prompt as the policy read it, from the root to the state."""
    chosen: Continuation
    rejected: Continuation
    margin: float
    """Q(chosen) - Q(rejected) > 0 in reward units; for whole paths, the difference of their returns; 0 for a row that
    is paired with itself."""
    origin: Origin = "real"


@config_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PairConfig:
    """Which actions of a tree form a preference pair."""

    rule: Literal["all", "best_vs_worst", "trajectory"] = "best_vs_worst"
    """Which pairs are made. "all" compares every two siblings of a node (Agent Q) and keeps the 4 pairs with the widest
    margin. "best_vs_worst" makes one pair of siblings per node (MCTS-DPO). "trajectory" makes one pair of whole paths
    per task, by their returns alone."""
    min_margin: Annotated[float, Field(gt=0)] = 0.2
    """Minimum difference of the two Q values, or of the two returns, in reward units (θ of Agent Q)."""


def preference_pairs(trees: Tree | Sequence[Tree], config: PairConfig) -> Iterator[PreferencePair]:
    """The preference pairs of one task, from one or more trees of it; only "trajectory" compares across trees."""
    trees = [trees] if isinstance(trees, Tree) else trees
    if config.rule == "trajectory":
        for tree, best, worst, margin in compared_trajectories(trees, config):
            taught = {id(edge) for edge in best if tree.may_prefer(edge)}
            yield _pair(tree, tree.root.context_ids, best, worst, margin, (*best, *worst), taught)
        return
    for tree in trees:
        for path, margin, chosen, rejected in compared_siblings(tree, config):
            read = (*path[-1:], chosen, rejected)
            yield _pair(tree, tree.prompt_ids(path), [chosen], [rejected], margin, read)


def self_pairs(rows: Iterable[TokenRow]) -> Iterator[PreferencePair]:
    """Each row to imitate as a pair with itself. Its preference is level and has no gradient, so that it acts in a loss
    with an imitation term alone: it holds up the good actions that no pair names, such as the one that ends an episode.
    Without it, what pairs reject in one state loses its likelihood in all (displacement, Razin et al. 2024)."""
    for row in rows:
        both = Continuation("", row.token_ids[1:], row.mask[1:], (0.0,) * len(row.mask[1:]))
        yield PreferencePair(row.task_id, row.token_ids[:1], both, both, 0.0, row.origin)


def compared_siblings(tree: Tree, config: PairConfig) -> Iterator[tuple[Sequence[Edge], float, Edge, Edge]]:
    """Tried siblings with a Q that differs by at least ``config.min_margin`` (Agent Q, algorithm 1), the chosen one of
    which ``tree.may_prefer``: the path to their node, the margin, the chosen edge and the rejected edge. At each node,
    the widest margins come first, as many as ``config.rule`` keeps."""
    count = 1 if config.rule == "best_vs_worst" else _MOST_PER_NODE
    for path, node in tree.walk():
        tried = [edge for edge in node.edges if edge.visits]
        good = sorted((edge for edge in tried if tree.may_prefer(edge)), key=lambda edge: -edge.value)
        bad = sorted(tried, key=lambda edge: edge.value)
        calls = {id(edge): merge_key(edge.action) for edge in tried}
        pairs = (
            (best.value - worst.value, best, worst)
            for best, worst in product(good, bad)
            # Chains keep equal calls as separate edges. They are one decision, so they form no pair.
            if reaches(best.value - worst.value, config.min_margin) and calls[id(best)] != calls[id(worst)]
        )
        for margin, chosen, rejected in nlargest(count, pairs, key=itemgetter(0)):
            yield path, margin, chosen, rejected


def compared_trajectories(
    trees: Sequence[Tree], config: PairConfig
) -> Iterator[tuple[Tree, Sequence[Edge], Sequence[Edge], float]]:
    """The ended path with the highest return against the one with the lowest among those with other calls: the
    outcome-only baseline (Agent Q, equation 6). Yields the tree of the highest path, both paths and the margin, or
    nothing. Ties go to the shorter path, then to the one found first."""
    ended = [
        (path_return(path, tree.discount), tree, path)
        for tree in trees
        for path, node in tree.walk()
        if path and node.ended and not node.unknown
    ]
    preferable = [(total, tree, path) for total, tree, path in ended if tree.may_prefer(path[-1])]
    if not preferable:
        return
    high, tree, best = max(preferable, key=lambda item: (item[0], -len(item[2])))
    prompt = tree.root.context_ids
    # Both paths must follow the same prompt, and an older tree of the task may have another one.
    calls = _calls(best)
    comparable = [
        (total, path) for total, other, path in ended if other.root.context_ids == prompt and _calls(path) != calls
    ]
    if not comparable:
        return
    low, worst = min(comparable, key=lambda item: (item[0], len(item[1])))
    if reaches(high - low, config.min_margin):
        yield tree, best, worst, high - low


def _calls(path: Sequence[Edge]) -> list[object]:
    """The calls of a path's turns, as ``merge_key`` compares them. A thought with an edge of its own has none."""
    return [merge_key(edge.action) for edge in path if not edge.thought]


def _pair(
    tree: Tree,
    prompt: tuple[int, ...],
    chosen: Sequence[Edge],
    rejected: Sequence[Edge],
    margin: float,
    read: Sequence[Edge],
    taught: Collection[int] | None = None,
) -> PreferencePair:
    """Two paths after a prompt as tokens. The edges ``read`` decide whether the pair is imagined; ``taught`` holds the
    ``id`` of the edges of ``chosen`` that carry loss, None for all."""
    require_logprobs(tree.task.id, (*chosen, *rejected))
    return PreferencePair(
        tree.task.id, prompt, _continuation(chosen, taught), _continuation(rejected), margin, path_origin(read)
    )


def _continuation(path: Sequence[Edge], compared: Collection[int] | None = None) -> Continuation:
    """The actions of a path and the observations between them. ``compared`` holds the ``id`` of the edges that carry
    loss; None means all."""
    tokens = turn_tokens(path, compared, closing=False)
    turns = "".join(edge.action.text if edge.thought else f"{edge.action.text}\n" for edge in path)
    return Continuation(turns.removesuffix("\n"), tokens.token_ids, tokens.mask, tokens.logprobs)

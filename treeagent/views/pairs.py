"""Preference pairs for DPO, a pure view of search trees: siblings (Agent Q, algorithm 1) or whole paths."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, compress
from operator import itemgetter
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as config_dataclass

from treeagent.search.node import Edge, Tree, path_origin, path_return
from treeagent.types import Origin
from treeagent.views.tokens import spell

_MOST_PER_NODE = 4
"""Pairs that the rule "all" keeps at each node, those of widest margin: more would let few nodes fill a batch."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """What follows a prompt: one action, or a path of actions with the observations between them."""

    text: str
    """The policy's turns, separated by line breaks."""
    token_ids: tuple[int, ...]
    """The ids as sampled and read, observations included."""
    mask: tuple[bool, ...]
    """True where the policy sampled the token and the pair compares it, aligned with ``token_ids``. Observations carry
    no loss, and neither do refused calls on a preferred path."""
    logprobs: tuple[float, ...]
    """Behaviour log-probabilities in nats, aligned with ``token_ids``; 0 where ``mask`` is False."""

    @property
    def logprob(self) -> float:
        """log μ of the sampled tokens, summed, in nats."""
        return sum(compress(self.logprobs, self.mask))


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two continuations of one prompt, the first preferred."""

    task_id: str
    context_ids: tuple[int, ...]
    """The whole prompt as the policy read it, from the root to the state."""
    chosen: Continuation
    rejected: Continuation
    margin: float
    """Q(chosen) - Q(rejected) > 0 in reward units; for whole paths the difference of their returns."""
    origin: Origin = "real"


@config_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PairConfig:
    """Which actions of a tree form a preference pair."""

    rule: Literal["all", "best_vs_worst", "trajectory"] = "best_vs_worst"
    """Which pairs are made: "all" compares every two siblings of a node (Agent Q) and keeps the 4 of widest margin,
    "best_vs_worst" makes one pair of siblings a node (MCTS-DPO), "trajectory" one pair of whole paths a task, by their
    returns alone."""
    min_visits: Annotated[int, Field(gt=0)] = 1
    """Least visit count N(s,a) of both siblings of a pair."""
    min_margin: Annotated[float, Field(gt=0)] = 0.2
    """Least difference of the two Q values, or of the two returns, in reward units (θ of Agent Q)."""


def preference_pairs(
    trees: Tree | Sequence[Tree], config: PairConfig, critic_weight: float = 0.0
) -> Iterator[PreferencePair]:
    """The preference pairs of one task.

    Args:
        trees: the task's tree, or several trees of it; only the rule "trajectory" compares across trees.
        config: which actions form a pair.
        critic_weight: weight 1 - α of the critic in siblings' Q = α Q_search + (1 - α) Q_critic (Agent Q, equation 10),
            as the search had it.

    Raises:
        UserError: the rule is "trajectory" and the prompt starts anew on a path that is compared.
    """
    trees = [trees] if isinstance(trees, Tree) else trees
    if config.rule == "trajectory":
        yield from trajectory_pairs(trees, config)
        return
    for tree in trees:
        yield from sibling_pairs(tree, config, critic_weight)


def sibling_pairs(tree: Tree, config: PairConfig, critic_weight: float) -> Iterator[PreferencePair]:
    """The pairs of ``compared_siblings`` as tokens."""
    for path, margin, chosen, rejected in compared_siblings(tree, config, critic_weight):
        yield PreferencePair(
            task_id=tree.task.id,
            context_ids=tree.prompt_ids(path),
            chosen=_continuation([chosen]),
            rejected=_continuation([rejected]),
            margin=margin,
            origin=path_origin((*path[-1:], chosen, rejected)),
        )


def compared_siblings(
    tree: Tree, config: PairConfig, critic_weight: float
) -> Iterator[tuple[Sequence[Edge], float, Edge, Edge]]:
    """Tried siblings whose Q differs by at least ``config.min_margin``, in reward units, the widest margin of each node
    first (Agent Q, algorithm 1): the path to their node, the margin, the chosen and the rejected edge. The chosen
    action is one that ``tree.may_prefer``."""
    for path, node in tree.walk():
        tried = [
            (edge.with_critic(edge.value, critic_weight), edge)
            for edge in node.edges
            if edge.visits >= config.min_visits
        ]
        ranked = sorted(tried, key=itemgetter(0), reverse=True)
        # Chains keep equal draws as separate edges: two actions of the same text form no pair.
        wide = [
            (more - less, best, worst)
            for (more, best), (less, worst) in combinations(ranked, 2)
            if more - less >= config.min_margin and best.action.text != worst.action.text and tree.may_prefer(best)
        ]
        wide.sort(key=itemgetter(0), reverse=True)
        for margin, chosen, rejected in wide[: 1 if config.rule == "best_vs_worst" else _MOST_PER_NODE]:
            yield path, margin, chosen, rejected


def trajectory_pairs(trees: Sequence[Tree], config: PairConfig) -> Iterator[PreferencePair]:
    """The pair of ``compared_trajectories`` as tokens.

    Raises:
        UserError: the prompt starts anew on one of the two paths.
    """
    for tree, best, worst, margin in compared_trajectories(trees, config):
        taught = {id(edge) for edge in best if tree.may_prefer(edge)}
        chosen, rejected = _continuation(best, taught), _continuation(worst)
        if chosen.token_ids != rejected.token_ids:
            yield PreferencePair(
                task_id=tree.task.id,
                context_ids=tree.root.context_ids,
                chosen=chosen,
                rejected=rejected,
                margin=margin,
                origin=path_origin((*best, *worst)),
            )


def compared_trajectories(
    trees: Sequence[Tree], config: PairConfig
) -> Iterator[tuple[Tree, Sequence[Edge], Sequence[Edge], float]]:
    """The ended path of highest return against the one of lowest, if they differ by at least ``config.min_margin``: the
    outcome-only baseline (Agent Q, equation 6). Yields the tree of the highest, both paths and the margin; or nothing.
    Ties go to the shorter path, then to the one found first.

    A path that hit a limit has ended too; its return closes with V(s). A path that ends where the dynamics could not
    tell what follows is left out. Actions of the chosen path that ``tree.may_prefer`` rules out carry no loss, and none
    of them is its last.
    """
    ended = [
        (path_return(path, tree.discount), tree, path)
        for tree in trees
        for path, node in tree.walk()
        if path and node.ended and not node.unknown
    ]
    believed = [one for one in ended if one[1].may_prefer(one[2][-1])]
    if not believed:
        return
    high, tree, best = max(believed, key=lambda end: (end[0], -len(end[2])))
    prompt = tree.root.context_ids
    # An older tree of the task may have another prompt, and both paths must follow the same one.
    rivals = [(total, path) for total, other, path in ended if other.root.context_ids == prompt]
    low, worst = min(rivals, key=lambda rival: (rival[0], len(rival[1])))
    if high - low >= config.min_margin:
        yield tree, best, worst, high - low


def _continuation(path: Sequence[Edge], compared: Collection[int] | None = None) -> Continuation:
    """The actions of a path and the observations between them; ``compared`` holds the ``id`` of the edges that carry
    loss, None for all."""
    spelt = spell(path, compared, closing=False)
    turns = "".join(edge.action.text if edge.thought else f"{edge.action.text}\n" for edge in path)
    return Continuation(turns.removesuffix("\n"), spelt.token_ids, spelt.mask, spelt.logprobs)

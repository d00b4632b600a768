"""Preference pairs for DPO, a pure view of search trees: siblings (Agent Q, algorithm 1) or whole paths."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, compress
from operator import itemgetter
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as config_dataclass

from treeagent.search.node import Edge, Tree, path_origin, path_return
from treeagent.types import Origin, UserError


@dataclass(frozen=True, slots=True)
class Continuation:
    """What follows a prompt: one action, or a path of actions with the observations between them."""

    text: str
    """What the policy wrote, a line break between turns."""
    token_ids: tuple[int, ...]
    """As sampled and read; observations included."""
    mask: tuple[bool, ...]
    """True where the policy sampled the token, as long as ``token_ids``: an observation carries no loss."""
    logprobs: tuple[float, ...]
    """Behaviour log-probabilities in nats, as long as ``token_ids``; 0 where ``mask`` is False."""

    @property
    def logprob(self) -> float:
        """log μ of what was sampled, summed over tokens, in nats."""
        return sum(compress(self.logprobs, self.mask))


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two continuations of one prompt, the first preferred."""

    task_id: str
    context_ids: tuple[int, ...]
    """The whole prompt as the policy read it, root to state."""
    chosen: Continuation
    rejected: Continuation
    margin: float
    """Q(chosen) - Q(rejected), > 0, of Q mixed with the critic's where that has weight; for whole paths the difference
    of their returns."""
    smoothing: float = 0.0
    """Conservative DPO's label smoothing, in [0, 0.5]."""
    origin: Origin = "real"


@config_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PairConfig:
    """What makes a pair."""

    min_visits: Annotated[int, Field(gt=0)] = 1
    """n_min: both siblings were tried at least so often."""
    min_margin: Annotated[float, Field(gt=0)] = 0.2
    """θ: least |ΔQ|, or difference of returns, in reward units."""
    critic_weight: Annotated[float, Field(ge=0, le=1)] = 0.0
    """1 - α of Q = α Q_search + (1 - α) Q_critic (Agent Q, equation 10), where the tree's search asked a critic."""
    rule: Literal["all", "best_vs_worst", "trajectory"] = "best_vs_worst"
    """Every pair of siblings (Agent Q), one pair of siblings a node (MCTS-DPO), or one pair of whole paths a task, by
    outcome alone."""
    max_per_node: Annotated[int, Field(gt=0)] = 4
    """Pairs of widest margin kept at each node."""
    smoothing: Literal["none", "visits"] = "none"
    """Of siblings: label smoothing N_l / (N_w + N_l), at most 0.5 (MCTS-DPO), or none."""


def preference_pairs(trees: Tree | Sequence[Tree], config: PairConfig) -> Iterator[PreferencePair]:
    """The pairs of one task's tree, or trees.

    Raises:
        UserError: whole paths are to be compared, but the trees are of several tasks.
    """
    trees = [trees] if isinstance(trees, Tree) else trees
    if config.rule == "trajectory":
        yield from trajectory_pairs(trees, config)
        return
    for tree in trees:
        yield from sibling_pairs(tree, config)


def sibling_pairs(tree: Tree, config: PairConfig) -> Iterator[PreferencePair]:
    """Pairs of tried siblings whose Q differs by at least ``config.min_margin``, widest margin first at each node; the
    better one is an action that ``tree.may_prefer``."""
    for path, node in tree.walk():
        tried = [
            (edge.with_critic(edge.value, config.critic_weight), edge)
            for edge in node.edges
            if edge.visits >= config.min_visits
        ]
        ranked = sorted(tried, key=itemgetter(0), reverse=True)
        # Chains keep equal draws apart: of two that read the same neither is to be preferred.
        wide = [
            (more - less, best, worst)
            for (more, best), (less, worst) in combinations(ranked, 2)
            if more - less >= config.min_margin and best.action.text != worst.action.text and tree.may_prefer(best)
        ]
        wide.sort(key=itemgetter(0), reverse=True)
        if config.rule == "best_vs_worst":
            wide = wide[:1]
        for margin, chosen, rejected in wide[: config.max_per_node]:
            yield PreferencePair(
                task_id=tree.task.id,
                context_ids=tree.prompt_ids(path),
                chosen=_continuation([chosen]),
                rejected=_continuation([rejected]),
                margin=margin,
                smoothing=_smoothing(chosen, rejected) if config.smoothing == "visits" else 0.0,
                origin=path_origin((*path[-1:], chosen, rejected)),
            )


def trajectory_pairs(trees: Sequence[Tree], config: PairConfig) -> Iterator[PreferencePair]:
    """The ended path of highest return against that of lowest, if they differ by at least ``config.min_margin``: the
    outcome-only baseline (Agent Q, equation 6). Ties go to the shorter path, then to the one found first.

    A path that hit a limit has ended too; its return closes with V(s). One whose end nobody can tell is left out, and
    the better one ends with an action that ``tree.may_prefer``.

    Raises:
        UserError: the trees are of several tasks, or the prompt starts anew on one of their paths.
    """
    tasks = sorted({tree.task.id for tree in trees})
    if len(tasks) > 1:
        raise UserError(f"a pair compares paths of one task, not of {', '.join(tasks)}: call once for each task")
    ended = [
        (path_return(path, tree.discount), tree, path)
        for tree in trees
        for path, node in tree.walk()
        if path and node.ended and not node.unknown
    ]
    if not ended:
        return
    for _, tree, path in ended:
        if any(edge.child is not None and edge.child.left_out for edge in path[:-1]):
            raise UserError(
                f"old observations are left out on a path of task {tree.task.id}, so that no one prompt stands before "
                "its actions: compare siblings (update.pairs.rule), or collect trees with policy.context='refuse'"
            )
    believed = [one for one in ended if one[1].may_prefer(one[2][-1])]
    if not believed:
        return
    high, tree, best = max(believed, key=lambda end: (end[0], -len(end[2])))
    prompt = tree.root.context_ids
    # An older tree of the task may have another prompt, and both paths must follow the same one.
    rivals = [(total, path) for total, other, path in ended if other.root.context_ids == prompt]
    low, worst = min(rivals, key=lambda rival: (rival[0], len(rival[1])))
    chosen, rejected = _continuation(best), _continuation(worst)
    if high - low < config.min_margin or chosen.token_ids == rejected.token_ids:
        return
    yield PreferencePair(
        task_id=tree.task.id,
        context_ids=prompt,
        chosen=chosen,
        rejected=rejected,
        margin=high - low,
        origin=path_origin((*best, *worst)),
    )


def _continuation(path: Sequence[Edge]) -> Continuation:
    """The actions of a path, and what the policy read between them."""
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    for place, edge in enumerate(path, start=1):
        seen = edge.child.context_ids if edge.child is not None and place < len(path) else ()
        ids += [*edge.action.token_ids, *seen]
        mask += [True] * len(edge.action.token_ids) + [False] * len(seen)
        logprobs += [*edge.action.logprobs, *[0.0] * len(seen)]
    turns = "".join(edge.action.text if edge.thought else f"{edge.action.text}\n" for edge in path)
    return Continuation(turns.removesuffix("\n"), tuple(ids), tuple(mask), tuple(logprobs))


def _smoothing(chosen: Edge, rejected: Edge) -> float:
    return min(rejected.visits / (chosen.visits + rejected.visits), 0.5)

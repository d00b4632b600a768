"""Advantages of reinforcement learning with tools, after GRPO: what teaches nothing, and how early a tool is called."""

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean

from treeagent.search.node import Edge, Tree, succeeds
from treeagent.views.advantages.common import per_edge, relative, trajectory_returns


def simpletir_advantages(trees: Sequence[Tree]) -> dict[int, float]:
    """A by ``id`` of the edge: GRPO's, without the trajectories that have a void turn, one that holds no well-formed
    call (SimpleTIR, Xue et al. 2025, section 3.3). They count in the mean and the deviation of the returns,
    so that the advantages of the others need not sum to 0."""
    paths, returns = trajectory_returns(trees)
    kept = [
        (path, advantage)
        for path, advantage in zip(paths, relative(returns), strict=True)
        if not any(edge.action.error for edge in path)
    ]
    return per_edge([path for path, _ in kept], [advantage for _, advantage in kept])


def aspo_advantages(trees: Sequence[Tree], delta: float = -2.0, clip: float = 0.7) -> dict[int, float]:
    """A by ``id`` of the edge: GRPO's, and for successes with a call the term clip(δ (p - mean p) / mean L, -k A, k A)
    (ASPO, Lin and Xu 2025, equation 2). p is the number of sampled tokens up to the first call, L that of the whole
    trajectory, and their means are over these successes. ``delta`` is δ and ``clip`` is k, by default the paper's.
    The clipped terms need not sum to 0."""
    paths, returns = trajectory_returns(trees)
    scored = relative(returns)
    calling = [place for place, path in enumerate(paths) if succeeds(path) and any(edge.action.call for edge in path)]
    if calling:
        first = {place: _tokens_to_call(paths[place]) for place in calling}
        mean, length = fmean(first.values()), fmean(sum(map(_tokens, paths[place])) for place in calling)
        for place in calling:
            bound = clip * abs(scored[place])
            scored[place] += min(max(delta * (first[place] - mean) / length, -bound), bound)
    return per_edge(paths, scored)


def _tokens(edge: Edge) -> int:
    return len(edge.action.token_ids) - len(edge.action.forced)


def _tokens_to_call(path: Sequence[Edge]) -> int:
    """Sampled tokens up to the end of the first turn with a call."""
    return next(read for edge, read in zip(path, accumulate(map(_tokens, path)), strict=True) if edge.action.call)

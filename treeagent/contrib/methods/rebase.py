"""REBASE: reward-balanced search (Wu et al. 2024, arXiv 2408.00724).

The search goes down depth by depth. With a budget of B candidates for each depth, B_i = B - (episodes that ended above
depth i) remain at depth i. They are divided among the states n_j of that depth by a softmax over their scores R(n_j),
so that several good states share what a beam would give only to the best ones:

    W_j = Round(B_i exp(R(n_j) / T) / Σ_k exp(R(n_k) / T))

Then W_j candidates are sampled at n_j, and every one of them is stepped. A state with W_j = 0 is not expanded.

Differences from the paper: there, the score comes from a process reward model; here it is the reward on the path plus
V(s) at its end (``Searcher.rank``). The paper rounds each state separately; here the largest remainders are rounded up,
so that Σ W_j = B_i. Rounded separately, more than 2 B_i equal states would all get nothing. Equal calls at a state are
one child.
"""

import math
from collections.abc import Sequence
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent.search.baselines import Frontier
from treeagent.search.node import Path
from treeagent.search.searcher import Growth, last_node


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class RebaseOptions:
    """Settings of REBASE."""

    width: Annotated[int, Field(gt=0)] = 16
    """REBASE samples this many candidates (B) at each depth, minus one for each episode that has ended. It goes down
    the tree once. If B candidates per step exceed the limits before an episode ends, it finishes none."""
    temperature: Annotated[float, Field(gt=0)] = 0.2
    """REBASE divides the candidates of a depth among its states by a softmax over V(s) with this temperature (T), in
    reward units."""


class Rebase(Frontier):
    """REBASE: one pass down the tree. At each depth, ``width`` candidates are divided according to the values of the
    states."""

    Options = RebaseOptions
    options: RebaseOptions

    async def grow(self, growth: Growth) -> None:
        frontier: list[Path] = [[]]
        left = self.options.width
        while frontier and left > 0 and self.simulations_allowed(growth):
            scores = [self.rank(path)[0] if path else 0.0 for path in frontier]
            widths = split(left, scores, self.options.temperature)
            acting = [path for path, width in zip(frontier, widths, strict=True) if width]
            frontier = await self.try_all(growth, acting, [width for width in widths if width])
            children = [edge.child for path in acting for edge in last_node(growth, path).edges]
            left -= sum(child is not None and child.ended for child in children)


def split(budget: int, scores: Sequence[float], temperature: float) -> list[int]:
    """W_j for each score: ``budget`` divided in proportion to exp(R/T), rounded to integers with the same sum."""
    best = max(scores)
    weights = [math.exp((score - best) / temperature) for score in scores]
    shares = [budget * weight / math.fsum(weights) for weight in weights]
    widths = [math.floor(share) for share in shares]
    by_remainder = sorted(range(len(scores)), key=lambda index: widths[index] - shares[index])
    for index in by_remainder[: budget - sum(widths)]:
        widths[index] += 1
    return widths

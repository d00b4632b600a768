"""AB-MCTS: Monte Carlo tree search that decides by Thompson sampling whether to go wider or deeper (Inoue et al. 2025,
"Wider or Deeper?", arXiv 2503.04412).

At a state the search either generates a new candidate (GEN) or continues below an existing one (CONT). It draws one
number from the posterior of each, and takes the option with the greater draw. Under CONT it draws from the posterior of
each child, and continues at the child with the greatest draw. The paper's variant A (node aggregation) fits each
posterior to the returns r seen there, with a conjugate prior. After n returns with mean r̄, the prior's parameters
become

    N(μ | m, σ²/κ) χ⁻²(σ² | ν, τ²):    κ' = κ + n    ν' = ν + n    m' = (κ m + n r̄) / κ'
                                       ν' τ'² = ν τ² + Σ (r - r̄)² + (m - r̄)² κ n / κ'

This is the normal-inverse-χ² distribution, which is the normal-inverse-gamma one with α = ν/2 and β = ν τ²/2.

A draw is a mean return: μ ~ N(m', σ²/κ') with σ² ~ ν' τ'²/χ²(ν'). The prior is that of the authors' program: m = 0,
κ = ν = 1, τ² = 0.1. As in the paper, a return updates GEN of the
state where the new child was made, the child itself, and, on the way up to the root, every child on the path and the
CONT above it.

Differences from the paper, where a node is a whole answer with a score and a child is a refinement: here, a node is a
state in the middle of an episode, and a child is one step further. The return of a new child is the step's reward plus
V(s). Nothing continues an end, so ends and explored subtrees leave CONT. Equal calls are one child: a sample that
repeats a call continues below it, and adds no evidence for GEN. Returns are normalised by the range of the tree's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from treeagent.search.node import Edge, Node, Path
from treeagent.search.puct import merge_key
from treeagent.search.searcher import Growth, Searcher, last_node, mark_exhausted, may_sample_new
from treeagent.types import derive_seed


@dataclass(frozen=True, slots=True)
class Gaussian:
    """The normal-inverse-χ² posterior of a mean return; without returns it is the prior."""

    mean: float = 0.0  # m
    kappa: float = 1.0  # κ: the weight of the mean, as a number of returns
    nu: float = 1.0  # ν: the weight of the variance, as a number of returns
    variance: float = 0.1  # τ²: the variance of a return

    def after(self, returns: Sequence[float]) -> "Gaussian":
        """The posterior after these returns, with this distribution as the prior."""
        if not returns:
            return self
        count, average = len(returns), math.fsum(returns) / len(returns)
        kappa, nu = self.kappa + count, self.nu + count
        spread = math.fsum((each - average) ** 2 for each in returns)
        shift = self.kappa * count / kappa * (self.mean - average) ** 2
        mean = (self.kappa * self.mean + count * average) / kappa
        return Gaussian(mean, kappa, nu, (self.nu * self.variance + spread + shift) / nu)

    def draw(self, rng: np.random.Generator) -> float:
        variance = self.nu * self.variance / rng.chisquare(self.nu)
        return float(rng.normal(self.mean, math.sqrt(variance / self.kappa)))


@dataclass(frozen=True, slots=True)
class _Returns:
    """The returns of an edge: of the simulation that generated the child, and of those that continued below it."""

    first: list[float] = field(default_factory=list[float])
    later: list[float] = field(default_factory=list[float])


@dataclass(frozen=True, slots=True)
class _Posteriors:
    """The returns in one tree, and draws from the posteriors that follow from them."""

    growth: Growth
    rng: np.random.Generator
    returns: dict[int, _Returns] = field(default_factory=dict[int, _Returns])
    """The returns of each edge, by the edge's ``id``."""

    def of(self, edge: Edge) -> _Returns:
        return self.returns.setdefault(id(edge), _Returns())

    def draw(self, lists: Sequence[list[float]]) -> float:
        """A draw from the posterior after the returns in ``lists``."""
        values = self.growth.value_range
        return Gaussian().after([values.normalise(each) for returns in lists for each in returns]).draw(self.rng)

    def prefers_new(self, node: Node, choices: Sequence[Edge]) -> bool:
        """Whether the draw for GEN beats the draw for CONT, which leads to one of ``choices``."""
        new = self.draw([self.of(edge).first for edge in node.edges])
        return new > self.draw([self.of(edge).later for edge in choices])

    def best(self, choices: Sequence[Edge]) -> Edge:
        """The child with the greatest draw."""
        draws = [self.draw([self.of(edge).first, self.of(edge).later]) for edge in choices]
        return choices[draws.index(max(draws))]


class ABMCTS(Searcher):
    """AB-MCTS-A. A simulation ends at the child that it generates, or at an end whose call it sampled again. One
    follows another, whatever ``leaves`` is, because each draw depends on the returns of all before.

    GEN uses up candidates that are not tried yet before it samples another one.
    """

    async def grow(self, growth: Growth) -> None:
        posteriors = _Posteriors(growth, np.random.default_rng(derive_seed(growth.tree.seed, "thompson sampling")))
        while self.simulations_allowed(growth) and not growth.tree.root.exhausted:
            path = await self._simulate(growth, posteriors)
            if not path:
                return
            if path[-1].child is not None:
                self._finish(growth, path, posteriors)

    async def _simulate(self, growth: Growth, posteriors: _Posteriors) -> Path:
        """The path to a new child, which is stepped, or to a state that nothing continues."""
        path = Path()
        while not self._closed(node := last_node(growth, path)):
            choices = [edge for edge in node.edges if edge.child is not None and not self._closed(edge.child)]
            untried = _untried(node)
            can = untried is not None or not node.edges or may_sample_new(node)
            if can and (not choices or posteriors.prefers_new(node, choices)):
                if untried is None:
                    await self.sample(growth, [node], [1], may_widen=True)
                    untried = _untried(node)
                if untried is not None:
                    path.append(untried)
                    await self.step(growth, [path])
                    return path
                if node.samples and not self._closed(node):  # a known call: go on below it
                    latest = merge_key(node.samples[-1])
                    path.append(next(edge for edge in node.edges if merge_key(edge.action) == latest))
            elif choices:
                path.append(posteriors.best(choices))
            else:
                return path
        return path

    def _closed(self, node: Node) -> bool:
        return node.exhausted or self.is_end(node)

    def _finish(self, growth: Growth, path: Path, posteriors: _Posteriors) -> None:
        """Back up a simulation, and record its return at every edge."""
        before, leaf, is_new = [edge.value_sum for edge in path], last_node(growth, path), not path[-1].visits
        leaf.exhausted |= self.is_end(leaf)
        self.back_up(growth, path)
        mark_exhausted(growth, path)
        if leaf.unknown:
            return
        for edge, earlier in zip(path, before, strict=True):
            seen, found = posteriors.of(edge), edge.value_sum - earlier
            growth.value_range.include(found)  # ``back_up`` includes only Q, a mean of returns
            (seen.first if is_new and edge is path[-1] else seen.later).append(found)


def _untried(node: Node) -> Edge | None:
    return next((edge for edge in node.edges if edge.child is None), None)

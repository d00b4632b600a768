"""Monte Carlo tree search over think/action steps, many trees at once.

One simulation of a tree has four phases:

1. Select: from the root, follow the edge with the best score (PUCT, or Gumbel selection) down to an edge without a
   child, to a node without candidates, or to an end.
2. Expand: at a node without candidates, sample an action from the policy and continue through it. This happens at the
   node's second visit, because most leaves are never visited again and sampling is the expensive part.
3. Evaluate: step the dynamics through the edge, and estimate V(s) of the state it leads to.
4. Back up: add the return to N and W of every edge on the path.

Further candidates are sampled where that looks better than the existing actions (``Search.prefers_new``).
"""

import math
from collections.abc import Sequence
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent.search.gumbel import Halving, gumbel_noise, improved_policy, phases, root_scores, visit_deficits
from treeagent.search.node import Edge, Node, Path
from treeagent.search.puct import exploration_at_depth, new_action_score, puct_best
from treeagent.search.searcher import Growth, Searcher, last_node, mark_exhausted, may_sample_new


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class MctsOptions:
    """Settings of Monte Carlo tree search."""

    c_init: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """PUCT multiplies its exploration term by this constant, and by less in trees that are deep relative to their
    limits (``puct.exploration_at_depth``)."""
    widening: Annotated[int, Field(ge=0, le=10**4)] = 1
    """MCTS samples this many candidates at a time, and samples more where that scores better than the actions that a
    state has. At 0, a state gets ``search.candidates`` when it is expanded and no more."""


class Search(Searcher):
    """Monte Carlo tree search with PUCT."""

    Options = MctsOptions
    options: MctsOptions

    async def grow(self, growth: Growth) -> None:
        """Grow one tree. Each iteration runs up to ``leaves`` simulations: select, expand, evaluate and back up."""
        if not growth.tree.error:
            await self.estimate(growth, [[]])  # ``step`` estimates every other node on its first visit
        while paths := self.select(growth):
            # A path continues through a node right after its expansion. If the sampled action was tried before, the
            # node below may need candidates too, hence the loop.
            while waiting := [path for path in paths if self._needs_candidates(growth, path)]:
                await self.expand(growth, waiting)
                paths = [path for path in paths if path not in waiting or self._continue_descent(growth, path)]
            await self.step(growth, [path for path in paths if path and path[-1].child is None])
            for path in paths:
                self.back_up(growth, path)

    def select(self, growth: Growth) -> list[Path]:
        """The paths of the simulations that start now. No two of them step through the same edge."""
        paths: list[Path] = []
        room = 0 if growth.tree.root.exhausted else self.simulations_allowed(growth)
        while len(paths) < room:
            path: Path = []
            if not self.descend(growth, path):
                break
            paths.append(path)
        return paths

    def descend(self, growth: Growth, path: Path) -> bool:
        """Extend ``path`` along the best edges to an untried edge, an end, or a node that needs candidates. Each edge
        on the path counts as in flight at once, so that the next simulation looks elsewhere (WU-UCT, Liu et al. 2020).
        False if every way on is already in flight."""
        c_init, node = self.exploration(growth), path[-1].child if path else growth.tree.root
        while node is not None and node.edges and not self.is_end(node):
            fresh, node.fresh = node.fresh, None
            if fresh is None and node.unseen and self.prefers_new(growth, node, c_init):
                break
            edges = free = fresh or node.edges
            if node.in_flight:
                free = [edge for edge in edges if edge.child is not None or not edge.in_flight]
            edge = self.choose(growth, node, free, c_init)
            if edge is None and all(edge.exhausted for edge in edges):  # a visit still refines N and Q
                edge = self.choose(growth, node, free, c_init, revisit=True)
            if edge is None:
                _release(growth, path)
                return False
            edge.in_flight += 1
            node.in_flight += 1
            path.append(edge)
            node = edge.child
        return True

    def exploration(self, growth: Growth) -> float:
        """``c_init``, and less in a tree that is deep relative to its limits (``puct.exploration_at_depth``)."""
        budget, c_init = growth.tree.budget, self.options.c_init
        if not budget.simulations:
            return c_init
        allowed = budget.simulations / max(self.config.limits.share(budget), 1e-9)  # at the cost of those so far
        return exploration_at_depth(c_init, allowed, growth.depth)

    def _continue_descent(self, growth: Growth, path: Path) -> bool:
        if not self.descend(growth, path):
            return False
        if self._needs_candidates(growth, path) and not self.simulations_allowed(growth):
            _release(growth, path)
            return False
        return True

    def _needs_candidates(self, growth: Growth, path: Path) -> bool:
        node = path[-1].child if path else growth.tree.root
        return node is not None and not self.is_end(node)

    async def expand(self, growth: Growth, paths: Sequence[Path]) -> None:
        nodes = list(dict.fromkeys(last_node(growth, path) for path in paths))
        count = self.options.widening or self.config.candidates
        await self.sample(growth, nodes, [count] * len(nodes), may_widen=self.options.widening > 0)

    def prefers_new(self, growth: Growth, node: Node, c_init: float) -> bool:
        """Whether a further candidate should be sampled at ``node``. An action not sampled yet competes with the node's
        actions by its own PUCT score. One candidate is therefore enough if it is likely and does well."""
        if not may_sample_new(node):
            return False
        best, edge = puct_best(node, node.edges, growth.value_range, c_init)
        if edge is None:
            return True
        return self._may_widen(growth, node) and new_action_score(node, growth.value_range, c_init) > best

    def _may_widen(self, growth: Growth, node: Node) -> bool:
        """Whether ``node`` may get further candidates while it has actions to explore."""
        return True

    def choose(
        self, growth: Growth, node: Node, edges: Sequence[Edge], c_init: float, *, revisit: bool = False
    ) -> Edge | None:
        """The best of some edges of ``node``; None if all are exhausted, unless it may ``revisit`` them."""
        return puct_best(node, edges, growth.value_range, c_init, revisit=revisit)[1]

    def back_up(self, growth: Growth, path: Path) -> None:
        """Finish a simulation. If its step failed, no statistics change; the tree's error holds the reason."""
        _release(growth, path)
        if not path or (child := path[-1].child) is None:
            return
        child.exhausted = child.exhausted or self.is_end(child)
        super().back_up(growth, path)
        if child.exhausted:
            mark_exhausted(growth, path)
            note_best_returns(growth, path)


def note_best_returns(growth: Growth, path: Sequence[Edge]) -> None:
    """Note the greatest return beyond each exhausted edge of ``path``, by which ``backup`` counts revisits. Nothing is
    known beyond a refused call or a repeat, because search did not look there."""
    gamma = growth.tree.discount
    for edge, parent in zip(reversed(path), reversed(growth.tree.states(path[:-1])), strict=True):
        node = edge.child
        if node is None or not node.exhausted:
            return
        if node.ended and not node.unknown:
            edge.best = edge.leaf_return(gamma)
        elif node.best > -math.inf:
            edge.best = (edge.reward or 0.0) + edge.discount(gamma) * node.best
        if edge.best is not None:
            parent.best = max(parent.best, edge.best)


def _release(growth: Growth, path: Sequence[Edge]) -> None:
    node: Node | None = growth.tree.root
    for edge in path:
        assert node is not None
        edge.in_flight -= 1
        node.in_flight -= 1
        node = edge.child


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class GumbelOptions(MctsOptions):
    """Settings of Gumbel selection (Danihelka et al. 2022)."""

    considered: Annotated[int, Field(gt=0)] = 16
    """Sequential halving at the root starts with at most this many actions (m)."""


class GumbelSearch(Search):
    """Monte Carlo tree search with Gumbel selection (``gumbel.py``)."""

    Options = GumbelOptions
    options: GumbelOptions

    async def expand(self, growth: Growth, paths: Sequence[Path]) -> None:
        await super().expand(growth, paths)
        count = len(growth.tree.root.edges)
        if len(growth.noise) < count:  # an edge keeps its noise when others are added
            growth.noise = gumbel_noise(count, growth.tree.seed) if self.noise else [0.0] * count

    def choose(
        self, growth: Growth, node: Node, edges: Sequence[Edge], c_init: float, *, revisit: bool = False
    ) -> Edge | None:
        choices = [edge for edge in edges if revisit or not edge.exhausted]
        if len(choices) <= 1:
            return choices[0] if choices else None
        if node is not growth.tree.root:
            every = visit_deficits(node, improved_policy(node))
        else:
            required = 0 if self._may_widen(growth, node) else self._required_visits(growth)
            # If all actions with the required visits are exhausted, the ones closest to that number are chosen,
            # because the penalty outweighs any score.
            every = [
                score - 1e6 * abs(edge.visits + edge.in_flight - required)
                for edge, score in zip(node.edges, root_scores(node, growth.noise), strict=True)
            ]
        by_edge = {id(edge): score for edge, score in zip(node.edges, every, strict=True)}
        return max(choices, key=lambda edge: by_edge[id(edge)])

    def _may_widen(self, growth: Growth, node: Node) -> bool:
        """Whether the root may still get candidates before sequential halving begins. This ends when there are
        ``considered`` candidates, when the policy has no others, or when the share of the first phase is spent."""
        root, considered = growth.tree.root, self.options.considered
        if node is not root:
            return True
        if growth.halving is not None or not may_sample_new(root) or len(root.edges) >= considered:
            return False
        return self._share(growth) < 1 / phases(considered)

    def _share(self, growth: Growth) -> float:
        """The share of the limits that will be spent once the simulations in flight are finished."""
        return self.config.limits.share(growth.tree.budget, growth.tree.root.in_flight)

    def _required_visits(self, growth: Growth) -> int:
        """How many visits a root action must already have so that the simulation that starts now may choose it."""
        root = growth.tree.root
        started = growth.tree.budget.simulations + root.in_flight
        if growth.halving is None:
            considered = min(self.options.considered, len(root.edges))
            visits = [edge.visits + edge.in_flight for edge in root.edges]
            least = min(visits)
            growth.halving = Halving(considered, [least] * min(visits.count(least), considered), started, least + 1)
        return growth.halving.required_visits(started, self._share(growth))

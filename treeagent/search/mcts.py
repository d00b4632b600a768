"""Monte Carlo tree search over think/action steps, many trees at once.

One simulation of a tree has four phases:

1. Select: from the root, follow the edge of the best score (PUCT, UCT or Gumbel) down to an edge without a child, to a
   node without candidates, or to an end.
2. Expand: a node without candidates gets K actions sampled from the policy, and selection goes on through one of them.
   Candidates are sampled only now, at the node's second visit. Most leaves are never visited again, and sampling is
   what costs.
3. Evaluate: step the dynamics through the edge, and estimate V(s) of the state it leads to.
4. Back up: add the return to N and W of every edge on the path.

``Search.grow`` reads as if it searched one tree alone, ``leaves`` simulations side by side. Candidates, steps and
estimates of all trees are asked for together (``batches.py``), so that the language model works on large batches.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from treeagent.search.batches import Path, Request, Searcher, step_and_estimate
from treeagent.search.growth import Growth, end, expand, mark_exhausted
from treeagent.search.gumbel import considered_visits, gumbel_noise, improved_policy, root_scores, visit_deficits
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.puct import exploration_rate, first_play_value, puct_score, uct_score
from treeagent.types import derive_seed

ROOT_NOISE_ALPHA = 0.3
"""Concentration of the Dirichlet noise at the root, AlphaZero's for chess (Silver et al. 2018)."""


class Search(Searcher):
    """Monte Carlo tree search with PUCT, UCT or Gumbel selection, as ``SearchConfig.selection`` says."""

    def grow(self, growth: Growth) -> Iterator[Request]:
        """Each iteration is up to ``leaves`` simulations, by the four phases above."""
        if not growth.tree.error:
            yield Request("estimate", [[]])  # every other node is estimated when a simulation reaches it first
        while paths := self._select(growth):
            # A freshly expanded node is descended through at once, and what is below may want candidates in its turn
            # (where widening adds some): hence the loop.
            while waiting := [path for path in paths if self._wants_candidates(growth, path)]:
                yield Request("expand", waiting)
                stuck = {id(path) for path in waiting if not self._descend(growth, path)}
                paths = [path for path in paths if id(path) not in stuck]
            yield from step_and_estimate([path for path in paths if _untried(path)])
            for path in paths:
                self.back_up(growth, path)

    def _select(self, growth: Growth) -> list[Path]:
        """The paths of the simulations that start now; none where the search is over. No two of them step through the
        same edge."""
        tree, paths = growth.tree, list[Path]()
        if (tree.root.exhausted and self.config.skip_exhausted) or self._decided(tree):
            return paths
        room = self.room(growth)
        while len(paths) < room and self._descend(growth, path := Path()):
            paths.append(path)
        return paths

    def _decided(self, tree: Tree) -> bool:
        """Whether the lead of the most visited action at the root is greater than the number of simulations left."""
        if not self.config.stop_when_decided:
            return False
        assert self.config.limits.simulations is not None
        visits = sorted((edge.visits for edge in tree.root.edges), reverse=True)
        left = self.config.limits.simulations - tree.budget.simulations
        return bool(visits) and visits[0] - sum(visits[1:2]) > left

    def _descend(self, growth: Growth, path: Path) -> bool:
        """Extend ``path`` along the best edges to an untried edge, an end, or a node that wants candidates.

        Each edge passed counts as in flight at once, before anything is known of its outcome. These virtual visits make
        the next simulation of the batch look elsewhere (WU-UCT, Liu et al. 2020). Returns False, and gives the
        simulation up, where every way on is in flight already.
        """
        node: Node | None = end(growth, path)
        while node is not None and not self.is_end(node) and not self._missing(growth, node):
            edge = self._best_edge(growth, node)
            if edge is None:
                _release(path)
                return False
            edge.in_flight += 1
            path.append(edge)
            node = edge.child
        return True

    def _missing(self, growth: Growth, node: Node) -> int:
        """How many candidates must be sampled before selection can go through ``node``."""
        if not node.edges:
            return self.config.candidates
        # Sequential halving compares a fixed set of candidates, so that the root gets no more under it.
        halving = self.config.selection == "gumbel" and node is growth.tree.root
        if self.config.widening is None or halving:
            return 0
        factor, power = self.config.widening
        wanted: float = factor * node.visits_in_flight**power  # k(s) = C N(s)^α
        return max(math.ceil(wanted) - len(growth.drawn[id(node)]), 0)

    def _wants_candidates(self, growth: Growth, path: Path) -> bool:
        if _untried(path):
            return False
        node = end(growth, path)
        return not self.is_end(node) and self._missing(growth, node) > 0

    async def _expand(self, wanted: Sequence[tuple[Growth, Path]]) -> None:
        """Sample candidates at each node once, however many simulations wait there."""
        nodes = {id(node): (growth, node) for growth, path in wanted for node in [end(growth, path)]}.values()
        by_count: dict[int, list[tuple[Growth, Node]]] = defaultdict(list)
        for growth, node in nodes:
            by_count[self._missing(growth, node)].append((growth, node))
        # In the order of counts, so that the seeds of a tree do not depend on the trees beside it.
        for count, group in sorted(by_count.items()):
            await expand(self.policy, group, count, self.config, self.critic)
        for growth, node in nodes:
            if node is growth.tree.root and node.edges:
                self._prepare_root(growth)

    def _prepare_root(self, growth: Growth) -> None:
        """Mix noise into the priors of the root, and make the schedule of sequential halving."""
        edges, config = growth.tree.root.edges, self.config
        if config.root_noise and self.noise:
            # Drawn anew from the tree's seed: where widening adds candidates, the old ones keep their noise.
            rng = np.random.default_rng(derive_seed(growth.tree.seed, "root noise"))
            for edge, share in zip(edges, rng.dirichlet([ROOT_NOISE_ALPHA] * len(edges)), strict=True):
                edge.prior = (1 - config.root_noise) * edge.prior + config.root_noise * float(share)
        if config.selection == "gumbel":
            assert config.limits.simulations is not None
            growth.noise = gumbel_noise(len(edges), growth.tree.seed) if self.noise else [0.0] * len(edges)
            growth.schedule = considered_visits(min(config.gumbel.considered, len(edges)), config.limits.simulations)

    def _best_edge(self, growth: Growth, node: Node) -> Edge | None:
        """The edge to follow; None where other simulations of the batch already step through all candidates."""
        # Where all edges are closed (exhausted or pruned), a visit teaches nothing new but still sharpens N and Q.
        choices = [edge for edge in node.edges if self._is_open(edge)] or node.edges
        choices = [edge for edge in choices if edge.child is not None or not edge.in_flight]
        if len(choices) <= 1:
            return choices[0] if choices else None
        if self.config.selection == "gumbel":
            by_edge = self._gumbel_scores(growth, node)
            scores = [by_edge[id(edge)] for edge in choices]
        else:
            scores = self._scores(growth, node, choices)
        return choices[scores.index(max(scores))]

    def _is_open(self, edge: Edge) -> bool:
        """Whether something new can be found beyond ``edge``."""
        if (child := edge.child) is None:
            return True
        pruned = child.invalid and self.config.prune_invalid
        return not pruned and not (child.exhausted and self.config.skip_exhausted)

    def _scores(self, growth: Growth, node: Node, choices: Sequence[Edge]) -> list[float]:
        """The PUCT or UCT scores of ``choices``, in their order. Simulations in flight count as visits in the
        exploration term and leave Q alone (WU-UCT, equation 4)."""
        config, visits = self.config, node.visits_in_flight
        untried = first_play_value(node, growth.value_range)
        values = [self._selection_value(growth, edge, untried) for edge in choices]
        tried = [edge.visits + edge.in_flight for edge in choices]
        if config.selection == "uct":
            return [uct_score(q, visits, count, config.c_init) for q, count in zip(values, tried, strict=True)]
        # PUCT's N(s) includes the visit that evaluated s itself, as in AlphaZero and mctx. UCT's does not (Agent Q).
        c = exploration_rate(1 + visits, config.c_init)
        return [
            puct_score(q, edge.prior, 1 + visits, count, c)
            for q, edge, count in zip(values, choices, tried, strict=True)
        ]

    def _selection_value(self, growth: Growth, edge: Edge, untried: float) -> float:
        """Q̂(s,a), mixed with the critic's score by its weight; ``untried`` stands for Q̂ before the first visit."""
        values = growth.value_range
        q = values.normalise(edge.value) if edge.visits else untried
        if edge.critic is None:
            return q
        return edge.with_critic(q, self.config.critic_weight, values.normalise(edge.critic))

    def _gumbel_scores(self, growth: Growth, node: Node) -> dict[int, float]:
        """Scores of Gumbel selection by ``id`` of the edge."""
        if node is not growth.tree.root:
            deficits = visit_deficits(node, improved_policy(node, self.config))
            return {id(edge): deficit for edge, deficit in zip(node.edges, deficits, strict=True)}
        due = growth.schedule[node.visits_in_flight]
        scores = root_scores(node, growth.noise, self.config)
        # The schedule says how many visits the chosen action must have had. Where all such actions are exhausted, those
        # whose visits are nearest to that number take over: the penalty outweighs any score.
        return {
            id(edge): score - 1e6 * abs(edge.visits + edge.in_flight - due)
            for edge, score in zip(node.edges, scores, strict=True)
        }

    def back_up(self, growth: Growth, path: Path) -> None:
        """Finish a simulation. One whose step failed changes no statistics; the tree's error says what happened."""
        _release(path)
        if not path or (child := path[-1].child) is None:
            return
        child.exhausted |= self.is_end(child)
        super().back_up(growth, path)
        # Under widening, a node whose candidates are all exhausted will get others, and is not exhausted itself.
        if self.config.skip_exhausted and self.config.widening is None:
            mark_exhausted(growth.tree.root, path)


def _untried(path: Path) -> bool:
    """Whether the path ends at an edge without a child, through which the dynamics is to be stepped."""
    return bool(path) and path[-1].child is None


def _release(path: Sequence[Edge]) -> None:
    """Take back the virtual visits of a simulation."""
    for edge in path:
        edge.in_flight -= 1

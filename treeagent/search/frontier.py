"""Searches that expand the best states of the frontier: beam search and best-first search.

A simulation is one step. N(s,a) counts the steps at and below an edge, and W(s,a) sums their returns, each with V(s) of
the state it reached. ``Searcher.rank`` orders the frontier. Neither method continues beyond an end or, with
``prune_invalid``, beyond a refused call.
"""

import heapq
from collections.abc import Sequence
from itertools import count

from treeagent.search.batches import Path, Searcher
from treeagent.search.growth import Growth, last_node
from treeagent.search.requests import RequestGenerator


class Frontier(Searcher):
    """A search that grows its trees one step at a time."""

    def try_all(self, growth: Growth, paths: Sequence[Path]) -> RequestGenerator[list[Path]]:
        """Sample candidates at the end of each path and step through all of them, as far as the limits allow.

        Returns the paths to the states reached that may be expanded further.
        """
        reached: list[Path] = []
        for group in self.groups(growth, paths):
            yield from self.expand(growth, group)
            candidates = [[*path, edge] for path in group for edge in last_node(growth, path).edges]
            for tried in self.groups(growth, candidates):
                yield from self.step(growth, tried)
                stepped = [path for path in tried if path[-1].child is not None]
                for path in stepped:
                    self.back_up(growth, path)
                reached += filter(self.is_expandable, stepped)
        return reached


class Beam(Frontier):
    """Beam search: try all candidates of the B states kept at one depth, and keep the B best states that they lead to.

    An ended episode leaves the beam, and the search continues with the other states.
    """

    def grow(self, growth: Growth) -> RequestGenerator[None]:
        beam: list[Path] = [[]]
        while beam and self.simulations_allowed(growth):
            reached = yield from self.try_all(growth, beam)
            beam = sorted(reached, key=self.rank, reverse=True)[: self.config.beam.width]


class BestFirst(Frontier):
    """Best-first search (Koh et al. 2024): always expand the best state that is not expanded yet.

    Ties go to the state that was reached first.
    """

    def grow(self, growth: Growth) -> RequestGenerator[None]:
        order = count()
        queue: list[tuple[float, float, int, Path]] = [(0.0, 0.0, next(order), [])]
        while queue and self.simulations_allowed(growth):
            *_, path = heapq.heappop(queue)
            reached = yield from self.try_all(growth, [path])
            for path in reached:
                value, likelihood = self.rank(path)
                heapq.heappush(queue, (-value, -likelihood, next(order), path))

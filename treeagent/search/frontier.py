"""Searches that grow the states that look best so far: beam search, and best-first search.

A simulation is one step: N(s,a) counts the steps at and below an edge, W(s,a) sums their returns, each closed by V(s)
where it led. ``Batches.rank`` says what looks best. Nothing grows beyond an end or, with ``prune_invalid``, beyond a
refused call.
"""

import heapq
from collections.abc import Generator, Iterator, Sequence
from itertools import count

from treeagent.search.batches import Batches, Path, Request, step_and_estimate
from treeagent.search.growth import Growth, end


class Frontier(Batches):
    """What grows by steps."""

    def expand(self, growth: Growth, paths: Sequence[Path]) -> Generator[Request, None, list[Path]]:
        """Draw candidates at the end of each path and step through them, as far as limits allow.

        Returns the paths to the states found that may be grown further.
        """
        found: list[Path] = []
        for group in self.groups(growth, paths):
            yield Request("draw", group)
            candidates = [[*path, edge] for path in group for edge in end(growth, path).edges]
            for tried in self.groups(growth, candidates):
                yield from step_and_estimate(tried)
                stepped = [path for path in tried if path[-1].child is not None]
                for path in stepped:
                    self.back_up(growth, path)
                found += filter(self.opens, stepped)
        return found


class Beam(Frontier):
    """Beam search: all candidates of the B states kept at one depth are tried, and the best B that they lead to kept.

    Ends leave the beam, which goes on with the others.
    """

    def grow(self, growth: Growth) -> Iterator[Request]:
        kept: list[Path] = [[]]
        while kept and self.room(growth):
            found = yield from self.expand(growth, kept)
            kept = sorted(found, key=self.rank, reverse=True)[: self.config.beam_width]


class BestFirst(Frontier):
    """Best-first search (Koh et al. 2024): of all states not expanded yet, the best one is next.

    Equals are taken first come, first served.
    """

    def grow(self, growth: Growth) -> Iterator[Request]:
        order = count()
        queue: list[tuple[float, float, int, Path]] = [(0.0, 0.0, next(order), [])]
        while queue and self.room(growth):
            *_, path = heapq.heappop(queue)
            found = yield from self.expand(growth, [path])
            for path in found:
                worth, likelihood = self.rank(path)
                heapq.heappush(queue, (-worth, -likelihood, next(order), path))

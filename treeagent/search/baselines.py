"""The baselines: whole episodes (best-of-N), and searches that expand the best of their leaves (beam, best-first)."""

import heapq
from collections.abc import Sequence
from itertools import count
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent.search.node import Edge, Path
from treeagent.search.puct import given_edges
from treeagent.search.searcher import Growth, Searcher, last_node, store_proposal


class Chains(Searcher):
    """A search by whole episodes: a simulation is a chain, with one action sampled at each state until the end. Equal
    samples are not merged, siblings have equal priors, and V(s) is estimated only at the end of a chain."""

    prunes = False  # an independent episode also walks in circles
    estimate_all = False

    async def extend(self, growth: Growth, paths: Sequence[Path]) -> None:
        """Sample one action at the end of each path and extend the path by its edge."""
        nodes = [last_node(growth, path) for path in paths]
        proposals = await self.proposals(growth, nodes, [1] * len(nodes))
        for path, node, proposal in zip(paths, nodes, proposals, strict=True):
            if not store_proposal(growth, node, proposal):
                if not node.ended:  # the request failed where other chains go on: this chain has no return
                    path.clear()
                continue
            edge = Edge(proposal.actions[0], 1.0)
            if proposal.priors:
                [edge] = given_edges(proposal.actions, proposal.priors, 1)
            node.edges.append(edge)
            for sibling in node.edges:
                sibling.prior = 1 / len(node.edges)
            path.append(edge)

    async def chains(self, growth: Growth, paths: Sequence[Path]) -> None:
        """Extend each path to the end of its episode, ``leaves`` chains in parallel, as far as the limits allow. A
        chain with a failed step is not backed up, and none starts after it."""
        for batch in self.groups(growth, paths):
            active = batch
            while active:
                await self.extend(growth, active)
                active = [path for path in active if path and path[-1].child is None]
                await self.step(growth, active, estimate=self.estimate_all)
                active = [path for path in active if path[-1].child is not None and not path[-1].child.ended]
            complete = [path for path in batch if path and path[-1].child is not None]
            if not self.estimate_all:
                await self.estimate(growth, complete)
            for path in complete:
                self.back_up(growth, path)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class BestOfNOptions:
    """Settings of best-of-N."""

    estimate_all: bool = False
    """Estimates V(s) of every state, as PPO's advantages need it, and not only at the ends."""


class BestOfN(Chains):
    """N independent episodes that share only the root, as many as the limits allow, ``leaves`` of them in parallel.
    N(s,a) is 1 on every edge, and W(s,a) is the return of its chain from there on."""

    Options = BestOfNOptions
    options: BestOfNOptions

    async def grow(self, growth: Growth) -> None:
        self.estimate_all = self.options.estimate_all
        if self.estimate_all and not growth.tree.error:
            await self.estimate(growth, [[]])
        while room := self.simulations_allowed(growth):
            await self.chains(growth, [[] for _ in range(room)])


class Frontier(Searcher):
    """A search that expands the best of its leaves, by ``Searcher.rank``. A simulation is one step. N(s,a) counts the
    steps at and below an edge, and W(s,a) sums their returns, each with V(s) of the state it reached."""

    async def try_all(self, growth: Growth, paths: Sequence[Path], counts: Sequence[int] = ()) -> list[Path]:
        """Sample candidates at the end of each path and step through all of them, as far as the limits allow. Returns
        the paths to the states reached that may be expanded further."""
        reached: list[Path] = []
        left = list(counts)
        for group in self.groups(growth, paths):
            some, left = left[: len(group)], left[len(group) :]
            await self.sample(growth, [last_node(growth, path) for path in group], some)
            candidates = [[*path, edge] for path in group for edge in last_node(growth, path).edges]
            for tried in self.groups(growth, candidates):
                await self.step(growth, tried)
                stepped = [path for path in tried if path[-1].child is not None]
                for path in stepped:
                    self.back_up(growth, path)
                reached += filter(self.is_expandable, stepped)
        return reached


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class BeamOptions:
    """Settings of beam search."""

    width: Annotated[int, Field(gt=0)] = 4
    """Beam search keeps this many states (B) at each depth."""


class Beam(Frontier):
    """Beam search: try all candidates of the B states kept at one depth, and keep the B best states reached."""

    Options = BeamOptions
    options: BeamOptions

    async def grow(self, growth: Growth) -> None:
        beam: list[Path] = [[]]
        while beam and self.simulations_allowed(growth):
            reached = await self.try_all(growth, beam)
            beam = sorted(reached, key=self.rank, reverse=True)[: self.options.width]


class BestFirst(Frontier):
    """Best-first search (Koh et al. 2024): always expand the best state that is not expanded yet."""

    async def grow(self, growth: Growth) -> None:
        order = count()
        queue: list[tuple[float, float, int, Path]] = [(0.0, 0.0, next(order), [])]
        while queue and self.simulations_allowed(growth):
            *_, path = heapq.heappop(queue)
            for reached in await self.try_all(growth, [path]):
                value, likelihood = self.rank(reached)
                heapq.heappush(queue, (-value, -likelihood, next(order), reached))

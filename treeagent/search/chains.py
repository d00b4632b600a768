"""Whole episodes sampled from the policy, without selection: best-of-N, and Tree-GRPO's random expansion.

A simulation is a chain: one action is sampled at each state until the episode ends, and the chain also continues after
refused calls. Equal samples are not merged: each stays in its own chain, and siblings have equal priors. V(s) is
estimated only at the end of a chain.
"""

import random
from collections.abc import Sequence
from typing import cast

from treeagent.search.batches import Path, Searcher
from treeagent.search.growth import Growth, last_node, store_proposal
from treeagent.search.node import Node
from treeagent.search.puct import candidate_edges, given_edges
from treeagent.search.requests import RequestGenerator
from treeagent.types import Proposal


class Chains(Searcher):
    """A search that grows its trees by whole chains."""

    @property
    def prunes_repeats(self) -> bool:
        """Never: an independent episode also walks in circles."""
        return False

    def candidate_count(self, growth: Growth, node: Node) -> int:
        return 1

    def expand(self, growth: Growth, paths: Sequence[Path]) -> RequestGenerator[None]:
        """Sample one action at the end of each path and extend the path by its edge. An equal edge is not reused,
        because merging would make two chains one."""
        if not paths:
            return
        nodes = [last_node(growth, path) for path in paths]
        proposals = cast("Sequence[Proposal]", (yield self.action_requests(growth, nodes)))
        for path, node, proposal in zip(paths, nodes, proposals, strict=True):
            if not store_proposal(growth, node, proposal):
                if not node.ended:  # the request failed where other chains go on: this chain has no return
                    path.clear()
                continue
            if proposal.priors:
                [edge] = given_edges(proposal.actions, proposal.priors, 1)
            else:
                [edge] = candidate_edges(proposal.actions[:1])
            node.edges.append(edge)
            for sibling in node.edges:
                sibling.prior = 1 / len(node.edges)
            path.append(edge)

    def chains(self, growth: Growth, paths: Sequence[Path]) -> RequestGenerator[None]:
        """Extend each path to the end of its episode, ``leaves`` chains in parallel, as far as the limits allow.

        A chain with a failed step is not backed up. The chains running in parallel with it are finished, and no chain
        starts after it.
        """
        for batch in self.groups(growth, paths):
            active = batch
            while active:
                yield from self.expand(growth, active)
                active = [path for path in active if path and path[-1].child is None]
                yield from self.step(growth, active, estimate=False)
                active = [path for path in active if path[-1].child is not None and not path[-1].child.ended]
            complete = [path for path in batch if path and path[-1].child is not None]
            if not self.config.estimate_all:  # otherwise ``step`` has estimated all their states
                yield from self.estimate(growth, complete)
            for path in complete:
                self.back_up(growth, path)


class BestOfN(Chains):
    """N independent episodes that share only the root. N is ``limits.simulations``, and ``leaves`` episodes run in
    parallel.

    Other limits stop it too. With ``limits.generated_tokens`` alone, N is as large as the tokens allow, so that
    best-of-N and search can be compared at equal tokens. N(s,a) is 1 on every edge, and W(s,a) is the return of its
    chain from there on.
    """

    def grow(self, growth: Growth) -> RequestGenerator[None]:
        while room := self.simulations_allowed(growth):
            yield from self.chains(growth, [[] for _ in range(room)])


class RandomExpand(Chains):
    """Tree-GRPO's rollouts (Ji et al. 2025): M chains from the root, then rounds that branch off them.

    Each initial chain and its branches form a group. In each round, N states of each group are drawn, uniformly and
    with replacement among the states in which the group acted (the root included), and each is continued to the end of
    the episode. Rounds follow until a limit: ``limits.simulations`` = M (L N + 1) gives L rounds. The paper's M trees
    share their root. Here they are therefore one tree, and ``group`` of the root's edges distinguishes them. N(s,a)
    counts the chains through an edge, and W(s,a) sums their returns.
    """

    def grow(self, growth: Growth) -> RequestGenerator[None]:
        first = list[Path]([] for _ in range(self.config.chains.initial))
        yield from self.chains(growth, first)
        for number, chain in enumerate(first):
            _begin_group(chain, number)
        groups = [_prefixes(chain, 0) for chain in first]
        rng = random.Random(growth.next_seed())
        while self.simulations_allowed(growth):
            if growth.failure:  # a state whose request failed gets no further actions (``growth.unseen``)
                groups = [
                    [path for path in group if id(last_node(growth, path[:-1])) not in growth.unseen]
                    for group in groups
                ]
            starts = [
                (number, start)
                for number, group in enumerate(groups)
                if group
                for start in self.starts(growth, group, rng)
            ]
            if not starts:
                return
            grown = [list(start) for _, start in starts]
            yield from self.chains(growth, grown)
            for (number, start), chain in zip(starts, grown, strict=True):
                _begin_group(chain, number)
                groups[number] += _prefixes(chain, len(start) + 1)

    def starts(self, growth: Growth, group: Sequence[Path], rng: random.Random) -> Sequence[Path]:
        """The paths to the states of a group from which a round samples further chains.

        Args:
            group: the paths up to and including each action of the group's chains, without the first action of each
                branch.
        """
        return [path[:-1] for path in rng.choices(group, k=self.config.chains.expansions)]


def _begin_group(chain: Path, number: int) -> None:
    """Store the group's number at the first edge of a chain. A chain that was not started because of a limit has no
    edge."""
    if chain:
        chain[0].group = number


def _prefixes(chain: Path, first: int) -> list[Path]:
    """The paths from the root up to and including each action of a chain, starting with the action at index
    ``first``."""
    return [chain[: index + 1] for index in range(first, len(chain))]

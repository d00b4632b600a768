"""Whole episodes under the policy, without a tree policy: best-of-N, and Tree-GRPO's random expansion.

A simulation is a chain: one action drawn at each state until the episode ends, refused calls and all. Equal draws stay
apart, each in a chain of its own, so that siblings have equal priors. V(s) is asked for at a chain's end only.
"""

import random
from collections.abc import Generator, Iterator, Sequence

from treeagent.search.batches import Batches, Path, Request
from treeagent.search.growth import Growth, end, write_context
from treeagent.search.puct import edges_from


class Chains(Batches):
    """What grows by chains."""

    async def _draw(self, wanted: Sequence[tuple[Growth, Path]]) -> None:
        """Lead each path on by one edge, beside those that its end has already."""
        if not wanted:
            return
        config, nodes = self.config, [end(growth, path) for growth, path in wanted]
        seeds = [growth.next_seed() for growth, _ in wanted]
        proposals = await self.policy.propose([node.state for node in nodes], 1, seeds)
        for (growth, path), node, proposal in zip(wanted, nodes, proposals, strict=True):
            growth.tree.budget.proposals += 1
            write_context(node, proposal)
            if proposal.error:
                node.truncated = node.exhausted = True
                if node is growth.tree.root:
                    growth.tree.error = proposal.error
                continue
            growth.tree.budget.generated_tokens += proposal.generated_tokens
            [edge, *_] = edges_from(
                proposal.actions, merge="text", temperature=config.prior_temperature, length_power=config.length_power
            )
            node.edges.append(edge)
            for sibling in node.edges:
                sibling.prior = 1 / len(node.edges)
            path.append(edge)

    def chains(self, growth: Growth, starts: Sequence[Path]) -> Generator[Request, None, list[Path]]:
        """Go on from each start until the episode ends, ``leaves`` chains side by side, as far as limits allow.

        Returns the chains that came to an end, in the order of their starts. One whose step fails is not backed up;
        those beside it are finished, none is started after it.
        """
        ended: list[Path] = []
        for group in self.groups(growth, [list(start) for start in starts]):
            fronts = group
            while fronts:
                yield Request("draw", fronts)
                fronts = [path for path in fronts if path and path[-1].child is None]
                yield Request("step", fronts)
                fronts = [path for path in fronts if path[-1].child is not None and not path[-1].child.ended]
            whole = [path for path in group if path and path[-1].child is not None]
            yield Request("estimate", whole)
            for path in whole:
                self.back_up(growth, path)
            ended += whole
        return ended


class BestOfN(Chains):
    """N independent episodes that share nothing but the root (N is ``limits.simulations``): sampling with N = 1, and
    greedy under a policy of temperature 0.

    ``leaves`` of them run side by side. They stop at other limits too, so that ``limits.generated_tokens`` alone gives
    best-of-N at equal tokens. N(s,a) is 1 on every edge and W(s,a) the return of its chain from there on.
    """

    def grow(self, growth: Growth) -> Iterator[Request]:
        while room := self.room(growth):
            yield from self.chains(growth, [[]] * room)


class RandomExpand(Chains):
    """Tree-GRPO's rollouts (Ji et al. 2025): M chains, then rounds in which N states of each chain's own tree, drawn
    uniformly and with replacement among all that have been acted in, the root included, are each continued anew to the
    end.

    Rounds follow each other until a limit is reached: ``limits.simulations`` = M (L N + 1) gives L of them. The M trees
    are one here, since they share the root. N(s,a) counts the chains through an edge, W(s,a) sums their returns.
    """

    def grow(self, growth: Growth) -> Iterator[Request]:
        first = yield from self.chains(growth, [[]] * self.config.initial_chains)
        groups = [_acted_in(chain, 0) for chain in first]
        luck = random.Random(growth.next_seed())
        while self.room(growth):
            starts = [start for group in groups for start in luck.choices(group, k=self.config.expansions)]
            grown = yield from self.chains(growth, starts)
            for place, (start, chain) in enumerate(zip(starts, grown, strict=False)):
                groups[place // self.config.expansions] += _acted_in(chain, len(start) + 1)


def _acted_in(chain: Path, shortest: int) -> list[Path]:
    """The paths to the states that a chain went through before its end, those of ``shortest`` steps and longer."""
    return [chain[:length] for length in range(shortest, len(chain))]

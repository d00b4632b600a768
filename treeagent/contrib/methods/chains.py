"""Whole episodes that branch off earlier ones: random expansion (Tree-GRPO) and entropy expansion (TreeRL).

Each initial chain and its branches form a group. In each round, N states of each group are chosen among the states in
which the group acted (the root included), and each is continued to the end of the episode. Rounds follow until a limit:
``limits.simulations`` = M (L N + 1) gives L rounds. N(s,a) counts the chains through an edge, and W(s,a) sums their
returns. The papers' M trees share their root. Here they are therefore one tree, and ``group`` of the root's edges
distinguishes them.
"""

import heapq
import random
from collections.abc import Sequence
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent.search.baselines import Chains
from treeagent.search.node import Edge, Path
from treeagent.search.searcher import Growth, last_node


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ChainsOptions:
    """Settings of random and entropy expansion."""

    initial: Annotated[int, Field(gt=0)] = 2
    """The search starts with this many chains (M), each a whole episode from the root."""
    expansions: Annotated[int, Field(gt=0)] = 2
    """In each round, every group is continued from this many of its states (N), to the end of the episode."""


class RandomExpand(Chains):
    """Tree-GRPO's rollouts (Ji et al. 2025): the states to continue from are drawn uniformly, with replacement."""

    Options = ChainsOptions
    options: ChainsOptions

    async def grow(self, growth: Growth) -> None:
        first = list[Path]([] for _ in range(self.options.initial))
        await self.chains(growth, first)
        for number, chain in enumerate(first):
            _begin_group(chain, number)
        groups = [_prefixes(chain, 0) for chain in first]
        rng = random.Random(growth.next_seed())
        while self.simulations_allowed(growth):
            starts = [
                (number, start)
                for number, group in enumerate(groups)
                if group
                for start in self.starts(growth, group, rng)
            ]
            if not starts:
                return
            grown = [list(start) for _, start in starts]
            await self.chains(growth, grown)
            failed = set[int]()  # states that get no further actions, because a request for them failed
            for (number, start), chain in zip(starts, grown, strict=True):
                _begin_group(chain, number)
                groups[number] += _prefixes(chain, len(start) + 1)
                if not chain:
                    failed.add(id(last_node(growth, start)))
            for group in groups if failed else ():
                group[:] = [path for path in group if id(last_node(growth, path[:-1])) not in failed]

    def starts(self, growth: Growth, group: Sequence[Path], rng: random.Random) -> Sequence[Path]:
        """The paths to the states of a group from which a round samples further chains.

        Args:
            group: the paths up to and including each action of the group's chains, without the first action of each
                branch.
        """
        return [path[:-1] for path in rng.choices(group, k=self.options.expansions)]


class EntropyExpand(RandomExpand):
    """TreeRL's rollouts (Hou et al. 2025, "EPTree"): they continue from the most surprising actions.

    The paper forks at the tokens with the greatest entropy, which it estimates by -log π of the sampled token. The
    states of a tree lie between actions, so an action is scored here by its most surprising token, and states with the
    fewest samples come first: the authors' code picks no token twice.
    """

    def starts(self, growth: Growth, group: Sequence[Path], rng: random.Random) -> Sequence[Path]:
        def order(path: Path) -> tuple[int, float]:
            samples = last_node(growth, path[:-1]).edges
            if len(path) == 1:  # all groups share the root
                samples = [edge for edge in samples if edge.group == path[0].group]
            return len(samples), -surprise(path[-1])

        return [path[:-1] for path in heapq.nsmallest(self.options.expansions, group, order)]


def surprise(edge: Edge) -> float:
    """max_t -log π(y_t | x, y_<t) over the tokens of an action, in nats; 0 for one without tokens."""
    return max((-logprob for logprob in edge.action.logprobs), default=0.0)


def _begin_group(chain: Path, number: int) -> None:
    """Store the group's number at the first edge of a chain. A chain that was not started because of a limit has no
    edge."""
    if chain:
        chain[0].group = number


def _prefixes(chain: Path, first: int) -> list[Path]:
    """The paths from the root up to and including each action of a chain, starting with the action at index
    ``first``."""
    return [chain[: index + 1] for index in range(first, len(chain))]

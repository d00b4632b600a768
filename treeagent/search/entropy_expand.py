"""Whole chains from the states where the policy was least sure: EPTree, the search of TreeRL (Hou et al. 2025, arXiv
2506.11902).

M chains begin the search, each with its branches a group, as in Tree-GRPO's random expansion. A round picks N actions
of each group and samples other chains from the states in which they were taken, to the end of the episode. The paper
picks the N tokens of the highest

    H(y_t) = -log π(y_t | x, y_<t)

and cuts the text before them. A tree's states lie between actions, so that an action counts here by its most surprising
token: max_t H(y_t). The authors' code picks no token twice, nor the first one of a branch. Here states with the fewest
samples come first, which is the same until all actions of a group were picked, and the first action of a branch is
never picked. L rounds are M (L N + 1) chains, with one branch for each pick (T = 1).
"""

import heapq
import random
from collections.abc import Sequence

from treeagent.search.batches import Path
from treeagent.search.chains import RandomExpand
from treeagent.search.growth import Growth, end
from treeagent.search.node import Edge


class EntropyExpand(RandomExpand):
    """Random expansion that continues the most surprising actions' states, of equal ones the earliest."""

    def starts(self, growth: Growth, group: Sequence[Path], luck: random.Random) -> Sequence[Path]:
        def order(path: Path) -> tuple[int, float]:
            return len(end(growth, path[:-1]).edges), -surprise(path[-1])

        return [path[:-1] for path in heapq.nsmallest(self.config.chains.expansions, group, order)]


def surprise(edge: Edge) -> float:
    """max_t -log π(y_t | x, y_<t) over the tokens of an action, in nats; 0 for one without tokens."""
    return max((-logprob for logprob in edge.action.logprobs), default=0.0)

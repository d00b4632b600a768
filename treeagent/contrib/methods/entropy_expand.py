"""Whole chains from the states where the policy was least certain: EPTree, the search of TreeRL (Hou et al. 2025, arXiv
2506.11902).

The search starts with M chains. Each forms a group with its branches, as in Tree-GRPO's random expansion. A round picks
N actions of each group, and samples other chains from the states in which they were taken, to the end of the episode.
The paper picks the N tokens with the highest

    H(y_t) = -log π(y_t | x, y_<t)

and cuts the text before them. The states of a tree lie between actions, so an action is scored here by its most
surprising token: max_t H(y_t). The authors' code never picks a token twice, and never the first token of a branch. Here
states with the fewest samples come first, which is equivalent until all actions of a group were picked; the first
action of a branch is never picked. L rounds make M (L N + 1) chains, with one branch for each pick (T = 1).
"""

import heapq
import random
from collections.abc import Sequence

from treeagent.search.batches import Path
from treeagent.search.chains import RandomExpand
from treeagent.search.growth import Growth, last_node
from treeagent.search.node import Edge


class EntropyExpand(RandomExpand):
    """Random expansion that continues from the states of the most surprising actions. Ties go to the earliest."""

    def starts(self, growth: Growth, group: Sequence[Path], rng: random.Random) -> Sequence[Path]:
        def order(path: Path) -> tuple[int, float]:
            samples = last_node(growth, path[:-1]).edges
            if len(path) == 1:  # all groups share the root
                samples = [edge for edge in samples if edge.group == path[0].group]
            return len(samples), -surprise(path[-1])

        return [path[:-1] for path in heapq.nsmallest(self.config.chains.expansions, group, order)]


def surprise(edge: Edge) -> float:
    """max_t -log π(y_t | x, y_<t) over the tokens of an action, in nats; 0 for one without tokens."""
    return max((-logprob for logprob in edge.action.logprobs), default=0.0)

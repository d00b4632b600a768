"""Lookahead in a model, one action at a time: model predictive control (MPC)."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent.search.decide import by_visits
from treeagent.search.node import Path
from treeagent.search.searcher import Growth, Searcher, last_node


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class LookaheadOptions:
    """Settings of lookahead."""

    depth: Annotated[int, Field(gt=0)] = 2
    """Lookahead examines paths of this many steps, including the action to be taken."""


class Lookahead(Searcher):
    """From the current state, examine every candidate ``depth`` steps deep, with K candidates at each state.
    Take the first action of the best path, and plan again from where it leads, until the episode ends.

    A simulation examines one candidate of the current state and backs up the best path beyond it; N(s,a) and W(s,a)
    count such paths and sum their returns. ``most_visited_path`` gives the actions taken: if a sibling has as many
    visits as the first action of the plan, the plan is backed up again.
    """

    Options = LookaheadOptions
    options: LookaheadOptions

    prunes = False  # an action once taken cannot be pruned
    takes_visited = True

    async def grow(self, growth: Growth) -> None:
        path: Path = []
        while self.simulations_allowed(growth) and (not path or self.is_expandable(path)):
            node = last_node(growth, path)
            if not node.edges:
                await self.sample(growth, [node])
            candidates = [[*path, edge] for edge in node.edges]
            for group in self.groups(growth, candidates):
                await self._grow_to_depth(growth, group)
                if growth.tree.error:
                    return
                for candidate in group:
                    self.back_up(growth, self._best_continuation(candidate))
            plans = [self._best_continuation(each) for each in candidates if each[-1].child is not None]
            plans = [plan for plan in plans if not last_node(growth, plan).unknown]
            if not plans:
                return
            best = max(plans, key=self.rank)
            path = best[: len(path) + 1]
            while max(node.edges, key=by_visits) is not path[-1]:
                self.back_up(growth, best)  # each adds a visit, because no plan has an unknown outcome

    async def _grow_to_depth(self, growth: Growth, paths: Sequence[Path]) -> None:
        """Grow every node that is at most ``depth`` steps away and not in the tree yet."""
        for depth in range(self.options.depth):
            if depth:
                inner = [path for path in paths if self.is_expandable(path)]
                nodes = [last_node(growth, path) for path in inner]
                await self.sample(growth, [node for node in nodes if not node.edges])
                paths = [[*path, edge] for path in inner for edge in last_node(growth, path).edges]
            await self.step(growth, [path for path in paths if path[-1].child is None])
            if growth.tree.error:
                return

    def _best_continuation(self, path: Path) -> Path:
        """The best continuation of ``path`` in the tree so far; at a leaf, ``path`` itself."""
        node = path[-1].child
        assert node is not None
        beyond = [self._best_continuation([*path, edge]) for edge in node.edges if edge.child is not None]
        return max(beyond, key=self._known_first, default=path)

    def _known_first(self, path: Path) -> tuple[bool, tuple[float, float]]:
        """Sort key that ranks a path with an unknown outcome below all others."""
        leaf = path[-1].child
        return leaf is not None and not leaf.unknown, self.rank(path)

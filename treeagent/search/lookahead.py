"""Lookahead in a model, one action after the other: model predictive control (MPC)."""

from collections.abc import Generator, Iterator, Sequence

from treeagent.search.batches import Batches, Path, Request, step_and_estimate
from treeagent.search.decide import by_visits
from treeagent.search.growth import Growth, end


class Lookahead(Batches):
    """At the current state, look through every candidate, ``lookahead_depth`` steps deep with K candidates at each;
    take the first action of the best path; replan from where it leads, until the episode ends.

    A simulation looks through one candidate of the current state and backs up the best path beyond it: N(s,a) counts
    the times that an edge lay on such a path, W(s,a) sums their returns. What was looked at and was never on one stays
    in the tree with N = 0. ``best_path(tree, "visits")`` gives the actions taken: where a second thought leaves another
    sibling with as many visits, the plan is backed up again, at no cost but that of a simulation. A limit may end the
    episode early; the path then goes on with the best of what was looked through.

    With a world model as ``dynamics`` the actions are taken in imagination, too. To replan from what really happens,
    take the first action of the path in the real environment, and search again under a dynamics whose ``reset`` gives
    the state that it led to.
    """

    def grow(self, growth: Growth) -> Iterator[Request]:
        taken: Path = []
        while self.room(growth) and (not taken or self.opens(taken)):
            node = end(growth, taken)
            if not node.edges:
                yield Request("draw", [taken])
            plans = yield from self._look(growth, [[*taken, edge] for edge in node.edges])
            if not plans:
                return
            best = max(plans, key=self.rank)
            taken = best[: len(taken) + 1]
            while self.room(growth) and max(node.edges, key=by_visits) is not taken[-1]:
                self.back_up(growth, best)  # a visit each time, since nothing unknown is among the plans

    def _look(self, growth: Growth, candidates: Sequence[Path]) -> Generator[Request, None, list[Path]]:
        """The best path beyond each candidate, as far as limits allow and anybody can tell."""
        plans: list[Path] = []
        for group in self.groups(growth, candidates):
            yield from self._unfold(growth, group)
            if growth.tree.error:
                break
            for path in group:
                plans.append(self._best_beyond(path))
                self.back_up(growth, plans[-1])
        return [plan for plan in plans if not end(growth, plan).unknown]

    def _unfold(self, growth: Growth, paths: Sequence[Path]) -> Generator[Request, None, None]:
        """Try everything that lies within reach of ``paths`` and is not in the tree yet."""
        for depth in range(self.config.lookahead_depth):
            if depth:
                inner = [path for path in paths if self.opens(path)]
                yield Request("draw", [path for path in inner if not end(growth, path).edges])
                paths = [[*path, edge] for path in inner for edge in end(growth, path).edges]
            yield from step_and_estimate([path for path in paths if path[-1].child is None])
            if growth.tree.error:
                return

    def _best_beyond(self, path: Path) -> Path:
        node = path[-1].child
        assert node is not None
        beyond = [self._best_beyond([*path, edge]) for edge in node.edges]
        return max(beyond, key=self._told, default=path)

    def _told(self, path: Path) -> tuple[bool, tuple[float, float]]:
        """What nobody can tell comes after all that is known."""
        leaf = path[-1].child
        return leaf is not None and not leaf.unknown, self.rank(path)

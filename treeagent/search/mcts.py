"""Monte Carlo tree search over think/action steps, many trees at once.

One simulation of a tree has four phases:

1. Select: from the root, follow the edge with the best score (PUCT, UCT or Gumbel) down to an edge without a child, to
   a node without candidates, or to an end.
2. Expand: at a node without candidates, sample an action from the policy and continue through it. Candidates are
   sampled only at this point, at the node's second visit, because most leaves are never visited again and sampling is
   the expensive part.
3. Evaluate: step the dynamics through the edge, and estimate V(s) of the state it leads to.
4. Back up: add the return to N and W of every edge on the path.

PUCT and Gumbel selection sample further candidates where that looks better than the existing actions
(``Search._prefers_new``). A good state therefore keeps one candidate, and a state with disappointing candidates gets
more. UCT, and every selection if ``widening`` is 0, compares a fixed set of K candidates.

``Search.grow`` is written as if it searched one tree alone, with ``leaves`` parallel simulations. Candidates, steps and
estimates of all trees are requested together (``batches.py``), so that the language model works on large batches.
"""

from collections.abc import Sequence

from treeagent.search.batches import Path, Searcher
from treeagent.search.growth import Growth, last_node, mark_exhausted, may_sample_new, record_exhausted_returns
from treeagent.search.gumbel import (
    Halving,
    gumbel_noise,
    improved_policy,
    phases,
    root_scores,
    visit_deficits,
)
from treeagent.search.node import Edge, Node
from treeagent.search.puct import (
    exploration_at_depth,
    exploration_rate,
    first_play_value,
    merge_key,
    new_action_value,
    puct_score,
    uct_score,
)
from treeagent.search.requests import RequestGenerator


class Search(Searcher):
    """Monte Carlo tree search with PUCT, UCT or Gumbel selection, according to ``SearchConfig.selection``."""

    @property
    def widening(self) -> int:
        """How many candidates are sampled at a time; 0 if each state gets a fixed set of them."""
        return 0 if self.config.selection == "uct" else self.config.widening

    def grow(self, growth: Growth) -> RequestGenerator[None]:
        """Grow one tree. Each iteration runs up to ``leaves`` simulations: select, expand, evaluate and back up."""
        if not growth.tree.error and not self.config.estimate_all:
            yield from self.estimate(growth, [[]])  # ``step`` estimates every other node on its first visit
        while paths := self._select(growth):
            # A path continues through a node right after its expansion. If the sampled action was tried before, the
            # node below may need candidates too, hence the loop.
            while waiting := [path for path in paths if self._needs_candidates(growth, path)]:
                yield from self.expand(growth, waiting)
                given_up = {id(path) for path in waiting if not self._continue_descent(growth, path)}
                paths = [path for path in paths if id(path) not in given_up]
            yield from self.step(growth, [path for path in paths if _untried(path)])
            for path in paths:
                self.back_up(growth, path)

    def _select(self, growth: Growth) -> list[Path]:
        """The paths of the simulations that start now; none if the search is over. No two of them step through the same
        edge."""
        paths = list[Path]()
        room = self.simulations_allowed(growth)
        if room and self.config.skip_exhausted and self.is_finished(growth):
            return paths
        while len(paths) < room and self._descend(growth, path := Path()):
            paths.append(path)
        return paths

    def _continue_descent(self, growth: Growth, path: Path) -> bool:
        """Continue the descent from a node that was just expanded. A simulation that then needs further candidates is
        given up if a limit was reached in the meantime."""
        if not self._descend(growth, path):
            return False
        if self._needs_candidates(growth, path) and not self.simulations_allowed(growth):
            _release(path)
            return False
        return True

    def _descend(self, growth: Growth, path: Path) -> bool:
        """Extend ``path`` along the best edges to an untried edge, an end, or a node that needs candidates.

        Each edge on the path counts as in flight immediately, before its outcome is known. These virtual visits make
        the next simulation of the batch look elsewhere (WU-UCT, Liu et al. 2020). If every way on is already in flight,
        the simulation is given up and the function returns False.
        """
        node: Node | None = last_node(growth, path)
        while node is not None and not self.is_end(node) and node.edges:
            latest = growth.latest_edges.pop(id(node), None)
            if latest is None and self._prefers_new(growth, node):
                break
            edge = self._best_edge(growth, node, latest)
            if edge is None:
                _release(path)
                return False
            edge.in_flight += 1
            path.append(edge)
            node = edge.child
        return True

    def _prefers_new(self, growth: Growth, node: Node) -> bool:
        """Whether a further candidate should be sampled at ``node``.

        An action not sampled yet competes with the node's actions by its own PUCT score. Its prior is P(new), the
        probability that the next sample is a new action. Its Q is ``new_action_value``, and its visit count is the
        number of samples so far. One candidate is therefore enough if it is likely and does well. Others follow if it
        is unlikely, if it disappoints, or once there are many visits.
        """
        if not may_sample_new(growth, node):
            return False
        open_edges = [edge for edge in node.edges if self._is_open(edge)]
        if not open_edges:
            return True
        if self.config.selection == "gumbel" and node is growth.tree.root and not self._may_add_root_candidates(growth):
            return False
        visits, value = node.visits_in_flight, new_action_value(node, growth.value_range)
        c = self._exploration(growth, 1 + visits)
        new = puct_score(value, growth.unseen[id(node)], 1 + visits, len(growth.samples[id(node)]), c)
        return new > max(self._scores(growth, node, open_edges))

    def _may_add_root_candidates(self, growth: Growth) -> bool:
        """Whether the root may still get candidates before sequential halving begins. This ends when there are
        ``gumbel.considered`` candidates, when the policy has no others, or when the share of the first phase is spent.
        Afterwards the root gets others only if all of these are explored."""
        root, considered = growth.tree.root, self.config.gumbel.considered
        if growth.halving is not None or not may_sample_new(growth, root) or len(root.edges) >= considered:
            return False
        return self._share(growth) < 1 / phases(considered)

    def _share(self, growth: Growth) -> float:
        """The share of the limits that will be spent once the simulations in flight are finished."""
        in_flight = sum(edge.in_flight for edge in growth.tree.root.edges)
        return self.config.limits.share(growth.tree.budget, in_flight)

    def _needs_candidates(self, growth: Growth, path: Path) -> bool:
        """Whether candidates must be sampled at the end of ``path``."""
        return not _untried(path) and not self.is_end(last_node(growth, path))

    def candidate_count(self, growth: Growth, node: Node) -> int:
        return self.widening or self.config.candidates

    def expand(self, growth: Growth, paths: Sequence[Path]) -> RequestGenerator[None]:
        """Sample candidates once at each node, however many simulations wait there."""
        nodes = list({id(node): node for path in paths for node in [last_node(growth, path)]}.values())
        yield from self.sample(growth, nodes, may_widen=self.widening > 0)
        for node in nodes:
            if id(node) in growth.samples:
                keys = {merge_key(action) for action in growth.samples[id(node)][-self.widening :]}
                growth.latest_edges[id(node)] = [edge for edge in node.edges if merge_key(edge.action) in keys]
            if node is growth.tree.root and self.config.selection == "gumbel":
                growth.noise = self._root_noise(growth)

    def _root_noise(self, growth: Growth) -> list[float]:
        """The Gumbel noise of the edges of the root. An edge keeps its noise when others are added."""
        count = len(growth.tree.root.edges)
        return gumbel_noise(count, growth.tree.seed) if self.noise else [0.0] * count

    def _best_edge(self, growth: Growth, node: Node, latest: Sequence[Edge] | None = None) -> Edge | None:
        """The edge to follow: one of the ``latest`` ones if candidates were just sampled. None if other simulations of
        the batch already step through all of them."""
        edges = node.edges if latest is None else latest
        # If all edges are closed (exhausted or pruned), a visit finds nothing new but still refines N and Q.
        choices = [edge for edge in edges if self._is_open(edge)] or edges
        choices = [edge for edge in choices if edge.child is not None or not edge.in_flight]
        if len(choices) <= 1:
            return choices[0] if choices else None
        if self.config.selection == "gumbel":
            by_edge = self._gumbel_scores(growth, node)
            scores = [by_edge[id(edge)] for edge in choices]
        else:
            scores = self._scores(growth, node, choices)
        return choices[scores.index(max(scores))]

    def _is_open(self, edge: Edge) -> bool:
        """Whether something new can be found beyond ``edge``."""
        if (child := edge.child) is None:
            return True
        pruned = child.repeat or child.unknown or (child.invalid and self.config.prune_invalid)
        return not pruned and not (child.exhausted and self.config.skip_exhausted)

    def _scores(self, growth: Growth, node: Node, choices: Sequence[Edge]) -> list[float]:
        """The PUCT or UCT scores of ``choices``, in order. Simulations in flight count as visits in the exploration
        term, but do not affect Q (WU-UCT, equation 4)."""
        config, visits = self.config, node.visits_in_flight
        untried = first_play_value(node, growth.value_range)
        values = [growth.value_range.normalise(edge.value) if edge.visits else untried for edge in choices]
        tried = [edge.visits + edge.in_flight for edge in choices]
        if config.selection == "uct":
            return [uct_score(q, visits, count, config.c_init) for q, count in zip(values, tried, strict=True)]
        # PUCT's N(s) includes the visit that evaluated s itself, as in AlphaZero and mctx. UCT's does not (Agent Q).
        c = self._exploration(growth, 1 + visits)
        return [
            puct_score(q, edge.prior, 1 + visits, count, c)
            for q, edge, count in zip(values, choices, tried, strict=True)
        ]

    def _exploration(self, growth: Growth, parent_visits: int) -> float:
        """c(s) of PUCT. The number of simulations that the limits allow is extrapolated from the cost of those so
        far."""
        c_init, budget = self.config.c_init, growth.tree.budget
        if self.config.c_by_depth and budget.simulations:
            share = max(self.config.limits.share(budget), 1e-9)
            c_init = exploration_at_depth(c_init, budget.simulations / share, growth.depth)
        return exploration_rate(parent_visits, c_init)

    def _gumbel_scores(self, growth: Growth, node: Node) -> dict[int, float]:
        """Scores of Gumbel selection, by ``id`` of the edge."""
        if node is not growth.tree.root:
            deficits = visit_deficits(node, improved_policy(node))
            return {id(edge): deficit for edge, deficit in zip(node.edges, deficits, strict=True)}
        required = 0 if self._may_add_root_candidates(growth) else self._required_visits(growth)
        scores = root_scores(node, growth.noise)
        # The schedule fixes how many visits the chosen action must have. If all such actions are exhausted, the ones
        # closest to that number of visits are chosen, because the penalty outweighs any score.
        return {
            id(edge): score - 1e6 * abs(edge.visits + edge.in_flight - required)
            for edge, score in zip(node.edges, scores, strict=True)
        }

    def _required_visits(self, growth: Growth) -> int:
        """How many visits a root action must already have so that the simulation that starts now may choose it."""
        edges = growth.tree.root.edges
        started = growth.tree.budget.simulations + sum(edge.in_flight for edge in edges)
        if growth.halving is None:
            considered = min(self.config.gumbel.considered, len(edges))
            visits = [edge.visits + edge.in_flight for edge in edges]
            least = min(visits)
            behind = min(visits.count(least), considered)
            growth.halving = Halving(considered, [least] * behind, started, least + 1)
        return growth.halving.required_visits(started, self._share(growth))

    def back_up(self, growth: Growth, path: Path) -> None:
        """Finish a simulation. If its step failed, no statistics change; the tree's error holds the reason."""
        _release(path)
        if not path or (child := path[-1].child) is None:
            return
        child.exhausted |= self.is_end(child)
        super().back_up(growth, path)
        if self.config.skip_exhausted:
            mark_exhausted(growth, path)
            record_exhausted_returns(growth, path)


def _untried(path: Path) -> bool:
    """Whether the path ends at an edge without a child, through which the dynamics must be stepped."""
    return bool(path) and path[-1].child is None


def _release(path: Sequence[Edge]) -> None:
    """Take back the virtual visits of a simulation."""
    for edge in path:
        edge.in_flight -= 1

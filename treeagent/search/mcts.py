"""Monte Carlo tree search over think/action steps, many trees at once.

One simulation of a tree is: select down to a node that has no candidates yet or an edge never tried, propose (only
now: a leaf that is never revisited costs no tokens), step the dynamics once, estimate the new state, back up.
"""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from treeagent.search.config import SearchConfig
from treeagent.search.growth import (
    Growth,
    OnBatch,
    backup,
    draw,
    end,
    estimate_nodes,
    mark_exhausted,
    note_success,
    plant,
    share_time,
    take_step,
)
from treeagent.search.gumbel import considered_visits, gumbel_noise, improved_policy, root_scores, visit_deficits
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.puct import exploration_rate, first_play_value, puct_score, uct_score
from treeagent.types import Critic, Dynamics, Message, Policy, Task, Value, derive_seed

Flight = tuple[Growth, list[Edge]]
"""A simulation under way: a tree and the path from its root."""


class Search:
    """PUCT, UCT or Gumbel search under one policy and one dynamics."""

    def __init__(
        self,
        policy: Policy,
        dynamics: Dynamics,
        config: SearchConfig,
        value: Value | None = None,
        critic: Critic | None = None,
    ) -> None:
        """Without ``value`` a leaf is worth its terminal reward, else 0. ``critic`` is asked if it has weight."""
        self.policy = policy
        self.dynamics = dynamics
        self.config = config
        self.value = value
        self.critic = critic

    async def run(self, tasks: Sequence[Task], seeds: Sequence[int], on_batch: OnBatch | None = None) -> list[Tree]:
        """One tree a task, grown together; ``on_batch`` is told after every batch of simulations."""
        started = time.perf_counter()
        growths = await plant(self.dynamics, tasks, seeds, self.config)
        await self._estimate([(growth, growth.tree.root) for growth in growths if not growth.tree.error])
        share_time(growths, started)
        while active := [growth for growth in growths if self._goes_on(growth)]:
            await self._simulate(active)
            if on_batch is not None:
                on_batch([growth.tree for growth in growths])
        return [growth.tree for growth in growths]

    def _goes_on(self, growth: Growth) -> bool:
        tree = growth.tree
        closed = tree.error or tree.root.ended or (tree.root.exhausted and self.config.skip_exhausted)
        if closed or growth.succeeded or self.config.limits.reached(tree.budget):
            return False
        return not (self.config.stop_when_decided and self._decided(tree))

    def _decided(self, tree: Tree) -> bool:
        """No other action at the root can still become the most visited one."""
        assert self.config.limits.simulations is not None
        visits = sorted((edge.visits for edge in tree.root.edges), reverse=True)
        left = self.config.limits.simulations - tree.budget.simulations
        return bool(visits) and visits[0] - sum(visits[1:2]) > left

    async def _simulate(self, growths: Sequence[Growth]) -> None:
        """One batch: up to ``leaves`` simulations of each tree."""
        started = time.perf_counter()
        flights = [(growth, path) for growth in growths for path in self._select(growth)]
        while waiting := [flight for flight in flights if self._wants_candidates(flight)]:
            await self._expand([(growth, end(growth, path)) for growth, path in waiting])
            stuck = {id(path) for growth, path in waiting if not self._descend(growth, path)}
            flights = [(growth, path) for growth, path in flights if id(path) not in stuck]
        steps = [flight for flight in flights if _untried(flight)]
        stepping = [take_step(self.dynamics, *flight, self.config.step_seconds) for flight in steps]
        if len(stepping) == 1:
            await stepping[0]
        else:
            await asyncio.gather(*stepping)
        await self._estimate([(growth, node) for growth, path in steps if (node := path[-1].child) is not None])
        for growth, path in flights:
            self._land(growth, path)
        share_time(growths, started)

    def _select(self, growth: Growth) -> list[list[Edge]]:
        """Paths of simulations that can be in flight together: no two step through one edge."""
        limit, room = self.config.limits.simulations, self.config.leaves
        if limit is not None:
            room = min(room, limit - growth.tree.budget.simulations)
        paths: list[list[Edge]] = []
        while len(paths) < room and self._descend(growth, path := list[Edge]()):
            paths.append(path)
        return paths

    def _descend(self, growth: Growth, path: list[Edge]) -> bool:
        """Lead ``path`` on, along the best edges, to an untried edge, an end, or a node that wants candidates. False,
        and the simulation is given up, where every way on is in flight already."""
        node: Node | None = end(growth, path)
        while node is not None and not self._is_end(node) and not self._missing(growth, node):
            edge = self._best_edge(growth, node)
            if edge is None:
                _release(path)
                return False
            edge.in_flight += 1
            path.append(edge)
            node = edge.child
        return True

    def _is_end(self, node: Node) -> bool:
        return node.ended or (node.invalid and self.config.prune_invalid)

    def _missing(self, growth: Growth, node: Node) -> int:
        """Candidates to be drawn before selection can go through ``node``."""
        if not node.edges:
            return self.config.candidates
        # Sequential halving compares the candidates that it began with.
        halving = self.config.selection == "gumbel" and node is growth.tree.root
        if self.config.widening is None or halving:
            return 0
        factor, power = self.config.widening
        wanted: float = factor * node.visits_in_flight**power  # k(s) = C N(s)^α
        return max(math.ceil(wanted) - len(growth.drawn[id(node)]), 0)

    def _wants_candidates(self, flight: Flight) -> bool:
        if _untried(flight):
            return False
        node = end(*flight)
        return not self._is_end(node) and self._missing(flight[0], node) > 0

    async def _expand(self, waiting: Sequence[tuple[Growth, Node]]) -> None:
        """Draw the candidates that nodes want, once each, however many simulations wait there."""
        nodes = list({id(node): (growth, node) for growth, node in waiting}.values())
        by_count: dict[int, list[tuple[Growth, Node]]] = defaultdict(list)
        for growth, node in nodes:
            by_count[self._missing(growth, node)].append((growth, node))
        # Smallest first, so that the seeds of a tree's draws do not depend on its neighbours.
        for count, group in sorted(by_count.items()):
            await draw(self.policy, group, count, self.config, self.critic)
        for growth, node in nodes:
            if node is growth.tree.root and node.edges:
                self._prepare_root(growth)

    def _prepare_root(self, growth: Growth) -> None:
        """The noise of training, and the schedule of sequential halving."""
        edges, config = growth.tree.root.edges, self.config
        if config.root_noise:
            # Of the tree's seed alone: where widening adds candidates, the noise of the others stays.
            rng = np.random.default_rng(derive_seed(growth.tree.seed, "root noise"))
            for edge, share in zip(edges, rng.dirichlet([config.root_noise_alpha] * len(edges)), strict=True):
                edge.prior = (1 - config.root_noise) * edge.prior + config.root_noise * float(share)
        if config.selection == "gumbel":
            assert config.limits.simulations is not None
            growth.noise = gumbel_noise(len(edges), config.gumbel_scale, growth.tree.seed)
            growth.schedule = considered_visits(min(config.gumbel_considered, len(edges)), config.limits.simulations)

    def _best_edge(self, growth: Growth, node: Node) -> Edge | None:
        """None where all that selection could choose is being tried by other simulations of the batch."""
        choices = [edge for edge in node.edges if edge.child is None or self._is_open(edge)] or node.edges
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
        if edge.child is None:
            return True
        return not edge.child.exhausted if self.config.skip_exhausted else not self._is_pruned(edge.child)

    def _is_pruned(self, node: Node) -> bool:
        return node.invalid and self.config.prune_invalid

    def _scores(self, growth: Growth, node: Node, choices: Sequence[Edge]) -> list[float]:
        """Of PUCT or UCT, in the order of ``choices``. Simulations in flight count as visits (WU-UCT, equation 4)."""
        config, visits = self.config, node.visits_in_flight
        untried = first_play_value(node, growth.value_range, config.first_play_reduction)
        values = [self._selection_value(growth, edge, untried) for edge in choices]
        tried = [edge.visits + edge.in_flight for edge in choices]
        if config.selection == "uct":
            return [uct_score(q, visits, count, config.c_init) for q, count in zip(values, tried, strict=True)]
        # PUCT's N(s) counts the evaluation of s itself (as AlphaZero's and mctx's do), UCT's does not (Agent Q).
        c = exploration_rate(1 + visits, config.c_init, config.c_base)
        return [
            puct_score(q, edge.prior, 1 + visits, count, c)
            for q, edge, count in zip(values, choices, tried, strict=True)
        ]

    def _selection_value(self, growth: Growth, edge: Edge, untried: float) -> float:
        """Q̂(s,a), mixed with the critic's and lowered by a virtual loss where the config says so."""
        values, config = growth.value_range, self.config
        if edge.in_flight and config.in_flight == "virtual_loss" and math.isfinite(values.low):
            lost = edge.value_sum + edge.in_flight * values.low
            q = values.normalise(lost / (edge.visits + edge.in_flight))
        else:
            q = values.normalise(edge.value) if edge.visits else untried
        if edge.critic is None:  # not only for speed: normalising wants a value
            return q
        return edge.with_critic(q, config.critic_weight, values.normalise(edge.critic))

    def _gumbel_scores(self, growth: Growth, node: Node) -> dict[int, float]:
        if node is not growth.tree.root:
            deficits = visit_deficits(node, improved_policy(node, self.config))
            return {id(edge): deficit for edge, deficit in zip(node.edges, deficits, strict=True)}
        due = growth.schedule[node.visits_in_flight]
        scores = root_scores(node, growth.noise, self.config)
        # Where no open action has had as many visits as are due (the due ones are exhausted), the nearest take over.
        return {
            id(edge): score - 1e6 * abs(edge.visits + edge.in_flight - due)
            for edge, score in zip(node.edges, scores, strict=True)
        }

    async def _estimate(self, wanted: Sequence[tuple[Growth, Node]]) -> None:
        """V(s) of new nodes, taken from an equal state of the tree where transpositions count."""
        if self.config.transpositions != "off":
            wanted = [(growth, node) for growth, node in wanted if not self._share(growth, node)]
        await estimate_nodes(self.value, wanted)
        if self.config.transpositions != "off":
            for growth, node in wanted:
                if node.state.key is not None:
                    growth.seen.setdefault(node.state.key, node)

    def _share(self, growth: Growth, node: Node) -> bool:
        """Take the value of the node's twin; only of one that reads the same, since its tokens are taken too, and adds
        them to a prompt: one that starts anew holds another history."""
        twin = growth.seen.get(node.state.key) if node.state.key is not None else None
        if twin is None or twin.left_out or _added(twin) != _added(node):
            return False
        node.value, node.context_ids = twin.value, twin.context_ids
        if self.config.transpositions == "statistics" and twin.visits:
            node.value = sum(edge.value_sum for edge in twin.edges) / twin.visits
        return True

    def _land(self, growth: Growth, path: list[Edge]) -> None:
        """Back up a simulation; one whose step failed leaves no trace but the tree's error."""
        _release(path)
        if not path or (child := path[-1].child) is None:
            return
        child.exhausted |= self._is_pruned(child)
        backup(path, growth, self.config.process_weight)
        note_success(path, growth, self.config.stop_at_return)
        # Where candidates are added later, only ends are exhausted.
        if self.config.skip_exhausted and self.config.widening is None:
            mark_exhausted(growth.tree.root, path)


def _added(node: Node) -> tuple[Sequence[Message], Sequence[int]]:
    """What decides on the tokens that a state adds: what is read, and the last token of the agent's turn before, which
    may have ended without the stop token; at the root, which adds the whole prompt, there is none."""
    messages = node.state.messages
    return messages[-1:], [token for before in messages[-2:-1] for token in before.token_ids[-1:]]


def _untried(flight: Flight) -> bool:
    """Whether it ends at an edge without a child."""
    return bool(flight[1]) and flight[1][-1].child is None


def _release(path: Sequence[Edge]) -> None:
    """The simulation is no longer in flight."""
    for edge in path:
        edge.in_flight -= 1

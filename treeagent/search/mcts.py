"""Monte Carlo tree search over think/action steps, many trees at once.

One simulation of a tree is: select down to a node that has no candidates yet or an edge never tried, propose (only
now: a leaf that is never revisited costs no tokens), step the dynamics once, estimate the new state, back up. Trees
advance together, so that one ``propose`` and one ``estimate`` serve the frontier of all of them; each tree's draws
depend on its own seed alone.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as config_dataclass

from treeagent.search.node import Edge, Node, Tree
from treeagent.search.puct import (
    ValueRange,
    edges_from,
    exploration_rate,
    first_play_value,
    puct_score,
    uct_score,
)
from treeagent.seeds import derive_seed
from treeagent.types import Dynamics, Policy, State, Task, Value


@config_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class SearchConfig:
    """How a tree is grown."""

    simulations: Annotated[int, Field(gt=0)] = 16
    """Simulations per tree."""
    candidates: Annotated[int, Field(gt=0)] = 4
    """K, actions drawn at each expanded state, duplicates included."""
    selection: Literal["puct", "uct"] = "puct"
    """Selection rule: AlphaZero's, with priors, or Agent Q's, without."""
    c_init: Annotated[float, Field(ge=0)] = 1.25
    """PUCT's c_init; UCT's constant c."""
    c_base: Annotated[float, Field(gt=0)] = 19652.0
    """PUCT's c_base."""
    first_play_reduction: Annotated[float, Field(ge=0)] = 0.1
    """How much less than its siblings an untried edge is thought to be worth, in normalised Q."""
    prior_temperature: Annotated[float, Field(gt=0)] = 1.0
    """Temperature of the softmax over siblings."""
    length_power: Annotated[float, Field(ge=0, le=2)] = 1.0
    """Log-probabilities are divided by tokens^this before the softmax."""
    merge: Literal["text", "call"] = "call"
    """Siblings that make the same call are one edge, or only those of equal text."""
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0
    """γ, per step."""
    root_noise: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Weight of Dirichlet noise in the root's priors; for training only."""
    root_noise_alpha: Annotated[float, Field(gt=0)] = 0.3
    """Concentration of that noise."""
    skip_exhausted: bool = True
    """Do not revisit subtrees in which nothing new can be found (a deterministic dynamics gives nothing new there);
    a tree whose root is exhausted stops early."""
    prune_invalid: bool = True
    """Do not grow beyond a malformed or refused call, which leaves the environment where it was."""


@dataclass(slots=True)
class Growth:
    """What one tree needs while it grows, beside the tree itself."""

    tree: Tree
    value_range: ValueRange = field(default_factory=ValueRange)
    expansions: int = 0

    def next_seed(self) -> int:
        """A seed for the next draw, from the tree's seed and the count of draws so far."""
        self.expansions += 1
        return derive_seed(self.tree.seed, self.expansions)


class Search:
    """PUCT or UCT search under one policy, one dynamics and an optional value."""

    def __init__(self, policy: Policy, dynamics: Dynamics, config: SearchConfig, value: Value | None = None) -> None:
        """Without ``value`` a leaf is worth its terminal reward, else 0."""
        self.policy = policy
        self.dynamics = dynamics
        self.config = config
        self.value = value

    async def run(
        self, tasks: Sequence[Task], seeds: Sequence[int], on_wave: Callable[[Sequence[Tree]], None] | None = None
    ) -> list[Tree]:
        """One tree a task, grown together; ``on_wave`` is told after every simulation of all of them."""
        started = time.perf_counter()
        growths = await plant(self.dynamics, tasks, seeds)
        await estimate_nodes(self.value, [(growth, growth.tree.root) for growth in growths if not growth.tree.error])
        share_time([growth.tree for growth in growths], started)
        for _ in range(self.config.simulations):
            active = [growth for growth in growths if not growth.tree.error and not growth.tree.root.exhausted]
            if not active:
                break
            await self._simulate(active)
            if on_wave is not None:
                on_wave([growth.tree for growth in growths])
        return [growth.tree for growth in growths]

    async def _simulate(self, growths: Sequence[Growth]) -> None:
        started = time.perf_counter()
        paths = [self._select(growth) for growth in growths]
        await self._expand(
            [(g, leaf) for g, path in zip(growths, paths, strict=True) if not (leaf := end(g, path)).edges]
        )
        for growth, path in zip(growths, paths, strict=True):
            leaf = end(growth, path)
            if leaf.edges:
                path.append(self._best_edge(leaf, growth))
        untried = [(g, path) for g, path in zip(growths, paths, strict=True) if path[-1].child is None]
        await asyncio.gather(*(take_step(self.dynamics, growth, path) for growth, path in untried))
        await estimate_nodes(
            self.value, [(growth, node) for growth, path in untried if (node := path[-1].child) is not None]
        )
        for growth, path in zip(growths, paths, strict=True):
            if (child := path[-1].child) is not None:
                child.exhausted |= child.invalid and self.config.prune_invalid
                backup(path, growth.value_range, self.config.discount)
                growth.tree.budget.simulations += 1
                if self.config.skip_exhausted:
                    mark_exhausted(growth.tree.root, path)
        share_time([growth.tree for growth in growths], started)

    def _select(self, growth: Growth) -> list[Edge]:
        """Edges down to an ended node, or to a node that has no candidates yet or whose best edge is untried."""
        path: list[Edge] = []
        node = growth.tree.root
        while node.edges and not node.ended:
            edge = self._best_edge(node, growth)
            if edge.child is None:
                break
            path.append(edge)
            node = edge.child
        return path

    def _best_edge(self, node: Node, growth: Growth) -> Edge:
        config, visits = self.config, node.visits
        untried = first_play_value(node, growth.value_range, config.first_play_reduction)
        c = exploration_rate(visits, config.c_init, config.c_base)

        def score(edge: Edge) -> float:
            q = growth.value_range.normalise(edge.value) if edge.visits else untried
            if config.selection == "uct":
                return uct_score(q, visits, edge.visits, config.c_init)
            # max(., 1): before the first visit sqrt(0) would hide the priors.
            return puct_score(q, edge.prior, max(visits, 1), edge.visits, c)

        open_edges = [edge for edge in node.edges if not edge.exhausted] or node.edges
        return max(open_edges, key=score)

    async def _expand(self, wanted: Sequence[tuple[Growth, Node]]) -> None:
        wanted = [(growth, node) for growth, node in wanted if not node.ended]
        if not wanted:
            return
        proposals = await self.policy.propose(
            [node.state for _, node in wanted], self.config.candidates, [growth.next_seed() for growth, _ in wanted]
        )
        for (growth, node), proposal in zip(wanted, proposals, strict=True):
            node.context_ids = proposal.context_ids
            node.edges = edges_from(
                proposal.actions,
                merge=self.config.merge,
                temperature=self.config.prior_temperature,
                length_power=self.config.length_power,
            )
            if node is growth.tree.root and self.config.root_noise:
                self._add_noise(growth)
            growth.tree.budget.proposals += 1
            growth.tree.budget.generated_tokens += sum(len(action.token_ids) for action in proposal.actions)

    def _add_noise(self, growth: Growth) -> None:
        edges, weight = growth.tree.root.edges, self.config.root_noise
        noise = np.random.default_rng(growth.next_seed()).dirichlet([self.config.root_noise_alpha] * len(edges))
        for edge, draw in zip(edges, noise, strict=True):
            edge.prior = (1 - weight) * edge.prior + weight * float(draw)


def end(growth: Growth, path: Sequence[Edge]) -> Node:
    """The node at the end of ``path``."""
    node = path[-1].child if path else growth.tree.root
    assert node is not None
    return node


async def plant(dynamics: Dynamics, tasks: Sequence[Task], seeds: Sequence[int]) -> list[Growth]:
    """A tree of its root alone for each task. An environment that fails to reset costs its own tree only."""

    async def one(task: Task, seed: int) -> Growth:
        try:
            return Growth(Tree(task, seed, Node(await dynamics.reset(task))))
        except Exception as error:  # the episode boundary: a failed rollout is data
            return Growth(Tree(task, seed, Node(State(task, ()), truncated=True), error=describe(error)))

    seeded = list(zip(tasks, seeds, strict=True))
    return list(await asyncio.gather(*(one(task, seed) for task, seed in seeded)))


def describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


async def take_step(dynamics: Dynamics, growth: Growth, path: Sequence[Edge]) -> None:
    """Step through the last edge of ``path``. An environment that fails, or pays what is no number, costs its own tree
    only: the tree keeps the reason, the edge stays untried."""
    edge, parent = path[-1], end(growth, path[:-1])
    try:
        transition = await dynamics.step(parent.state, edge.action)
    except Exception as error:  # the episode boundary: a failed rollout is data
        growth.tree.error = describe(error)
        return
    growth.tree.budget.environment_steps += transition.cost
    if transition.reward is not None and not math.isfinite(transition.reward):
        growth.tree.error = f"the environment gave the reward {transition.reward}"
        return
    edge.reward = transition.reward
    edge.child = Node(
        transition.state,
        terminated=transition.terminated,
        truncated=transition.truncated,
        origin=transition.origin,
        invalid=transition.invalid,
        exhausted=transition.terminated or transition.truncated,
    )


async def estimate_nodes(value: Value | None, wanted: Sequence[tuple[Growth, Node]]) -> None:
    """Write V(s) and the context of each node, by one call.

    Raises:
        ValueError: an estimate is NaN or infinite.
    """
    if value is None or not wanted:
        return
    estimates = await value.estimate([node.state for _, node in wanted])
    for (growth, node), estimate in zip(wanted, estimates, strict=True):
        if not math.isfinite(estimate.value):
            raise ValueError(f"the value of a state of task {growth.tree.task.id} was estimated as {estimate.value}")
        node.value, node.context_ids = estimate.value, estimate.context_ids
        growth.tree.budget.estimates += 1


def backup(path: Sequence[Edge], value_range: ValueRange, discount: float) -> None:
    """N += 1, W += G along the path, with G = r + γ G' from the leaf up (Agent Q, equation 8, as a sum)."""
    leaf = path[-1].child
    assert leaf is not None
    total = leaf.leaf_value(path[-1].reward)
    for edge in reversed(path):
        total = (edge.reward or 0.0) + discount * total
        edge.visits += 1
        edge.value_sum += total
        value_range.include(edge.value)


def mark_exhausted(root: Node, path: Sequence[Edge]) -> None:
    """A node is exhausted when it ended, or when every one of its candidates leads to an exhausted node."""
    nodes = [root, *(edge.child for edge in path[:-1] if edge.child is not None)]
    for node in reversed(nodes):
        if not all(edge.exhausted for edge in node.edges):
            return
        node.exhausted = True


def share_time(trees: Sequence[Tree], started: float) -> None:
    share = (time.perf_counter() - started) / max(len(trees), 1)
    for tree in trees:
        tree.budget.seconds += share

"""The loop that the baselines share: in each batch every tree asks for what it needs next, and all are served together.

A method is a generator over one tree. It knows no other tree, no policy and no dynamics; limits and errors meet it in
``room`` alone, so that every method is cut off in the same way.
"""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from treeagent.search.config import SearchConfig
from treeagent.search.growth import (
    Growth,
    OnBatch,
    backup,
    draw,
    end,
    estimate_nodes,
    note_success,
    plant,
    share_time,
    take_step,
)
from treeagent.search.node import Edge, Tree
from treeagent.types import Critic, Dynamics, Policy, Task, Value

Path = list[Edge]
"""The edges from a tree's root to where it is grown next."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a tree asks of a batch: candidates at the end of each path, a step through each path's last edge, or V(s)
    at the end of each."""

    kind: Literal["draw", "step", "estimate"]
    paths: Sequence[Path]


@dataclass(slots=True)
class _Grower:
    growth: Growth
    requests: Iterator[Request]
    request: Request | None

    def go_on(self) -> None:
        self.request = next(self.requests, None)


class Batches(ABC):
    """A search that grows every tree by a method of its own, and all of them in the same batches."""

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

    @abstractmethod
    def grow(self, growth: Growth) -> Iterator[Request]:
        """Grow one tree. What is asked for is there when the generator goes on, unless the tree has an error."""

    async def run(self, tasks: Sequence[Task], seeds: Sequence[int], on_batch: OnBatch | None = None) -> list[Tree]:
        """One tree a task, grown together; ``on_batch`` is told after every batch."""
        started = time.perf_counter()
        growths = await plant(self.dynamics, tasks, seeds, self.config)
        if self.config.estimate_all:
            await estimate_nodes(self.value, [(each, each.tree.root) for each in growths if not each.tree.error])
        share_time(growths, started)
        growers = [_Grower(growth, self.grow(growth), None) for growth in growths]
        for grower in growers:
            grower.go_on()
        while growers := [grower for grower in growers if grower.request is not None]:
            await self._serve(growers)
            if on_batch is not None:
                on_batch([growth.tree for growth in growths])
        return [growth.tree for growth in growths]

    async def _serve(self, growers: Sequence[_Grower]) -> None:
        """One batch: candidates, then steps, then estimates, each for all trees that ask for them by then."""
        started = time.perf_counter()
        for kind, answer in (("draw", self._draw), ("step", self._step), ("estimate", self._estimate)):
            requests = [(grower, grower.request) for grower in growers if grower.request is not None]
            asking = [(grower, request) for grower, request in requests if request.kind == kind]
            await answer([(grower.growth, path) for grower, request in asking for path in request.paths])
            for grower, _ in asking:
                grower.go_on()
        share_time([grower.growth for grower in growers], started)

    async def _draw(self, wanted: Sequence[tuple[Growth, Path]]) -> None:
        nodes = [(growth, end(growth, path)) for growth, path in wanted]
        await draw(self.policy, nodes, self.config.candidates, self.config, self.critic)

    async def _step(self, wanted: Sequence[tuple[Growth, Path]]) -> None:
        seconds = self.config.step_seconds
        await asyncio.gather(*(take_step(self.dynamics, growth, path, seconds) for growth, path in wanted))
        if self.config.estimate_all:
            stepped = [(growth, path[-1].child) for growth, path in wanted]
            await estimate_nodes(self.value, [(growth, node) for growth, node in stepped if node is not None])

    async def _estimate(self, wanted: Sequence[tuple[Growth, Path]]) -> None:
        if not self.config.estimate_all:  # else it is known already
            await estimate_nodes(self.value, [(growth, end(growth, path)) for growth, path in wanted])

    def room(self, growth: Growth) -> int:
        """How many simulations the tree may start side by side: at most ``leaves``; none once it has failed,
        succeeded or reached a limit."""
        tree, limits = growth.tree, self.config.limits
        if tree.error or tree.root.ended or growth.succeeded or limits.reached(tree.budget):
            return 0
        if limits.simulations is None:
            return self.config.leaves
        return min(self.config.leaves, limits.simulations - tree.budget.simulations)

    def groups(self, growth: Growth, paths: Sequence[Path]) -> Iterator[Sequence[Path]]:
        """``paths``, as many at a time as there is room for when the group before is done."""
        start = 0
        while start < len(paths) and (room := self.room(growth)):
            yield paths[start : start + room]
            start += room

    def opens(self, path: Path) -> bool:
        """Whether the tree may grow beyond ``path``."""
        node = path[-1].child
        return node is not None and not node.ended and not (node.invalid and self.config.prune_invalid)

    def back_up(self, growth: Growth, path: Path) -> None:
        """Finish a simulation."""
        backup(path, growth, self.config.process_weight)
        note_success(path, growth, self.config.stop_at_return)

    def rank(self, path: Path) -> tuple[float, float]:
        """How good a path looks: the return along it, closed by V(s) and mixed with process rewards and the critic's
        word on its last action as the settings say; among equals, the probability of its actions, Π P(s,a).

        Without a ``Value``, and before any reward, that probability alone decides, as in a beam search of sentences.
        """
        config, last = self.config, path[-1]
        assert last.child is not None
        weight = config.process_weight
        worth = (1 - weight) * last.child.leaf_value(last.reward)
        for edge in reversed(path):
            earned = (1 - weight) * (edge.reward or 0.0) + weight * edge.process
            worth = earned + (1.0 if edge.thought else config.discount) * worth
            if edge is last:
                worth = edge.with_critic(worth, config.critic_weight)
        return worth, math.prod(edge.prior for edge in path)


def step_and_estimate(paths: Sequence[Path]) -> Generator[Request, None, None]:
    """Step the last edges of ``paths`` and estimate where they lead."""
    yield Request("step", paths)
    yield Request("estimate", [path for path in paths if path[-1].child is not None])

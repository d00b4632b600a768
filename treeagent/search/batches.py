"""The loop that all search methods share.

A method is a generator over one tree (``Searcher.grow``). It yields what it needs next: candidates, steps or estimates.
The loop collects these requests from all trees, serves them together in one batch, and lets each generator go on. So a
method reads as if it searched one tree alone, and still shares its model calls with all others.

A generator asks ``room`` how many simulations it may start. Limits and errors act there alone, so that every method is
cut off in the same way.
"""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from treeagent.search.config import SearchConfig
from treeagent.search.growth import (
    Growth,
    backup,
    end,
    estimate_nodes,
    expand,
    plant,
    share_time,
    take_step,
)
from treeagent.search.node import Edge, Node, Tree, path_return, reaches
from treeagent.types import Critic, Dynamics, Policy, Task, Value

Path = list[Edge]
"""The edges from the root to a place in the tree."""
OnBatch = Callable[[Sequence[Tree]], None]
"""A function that is called after every batch with all trees as they are then."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a tree needs of the next batch: candidates at the end of each path (expand), a step through the last edge of
    each path, or an estimate of V(s) at the end of each path."""

    kind: Literal["expand", "step", "estimate"]
    paths: Sequence[Path]


@dataclass(slots=True)
class _Grower:
    growth: Growth
    requests: Iterator[Request]
    request: Request | None = None

    def go_on(self) -> None:
        """Let the generator use what it asked for, until it asks for more."""
        self.request = next(self.requests, None)


class Searcher(ABC):
    """A search method: grows one tree a task, many trees at once.

    Args:
        value: without it a leaf is worth 0 beside the rewards on its path.
        critic: called if ``config.critic_weight`` is above 0.
        noise: False leaves out the noise at the root, as evaluation does.
    """

    def __init__(
        self,
        policy: Policy,
        dynamics: Dynamics,
        config: SearchConfig,
        value: Value | None = None,
        critic: Critic | None = None,
        *,
        noise: bool = True,
    ) -> None:
        self.policy = policy
        self.dynamics = dynamics
        self.config = config
        self.value = value
        self.critic = critic
        self.noise = noise

    @abstractmethod
    def grow(self, growth: Growth) -> Iterator[Request]:
        """Grow one tree. When the generator goes on, what it asked for is in the tree, unless the tree has an error."""

    async def run(self, tasks: Sequence[Task], seeds: Sequence[int], on_batch: OnBatch | None = None) -> list[Tree]:
        """Search each task.

        Args:
            seeds: one a task. Equal seeds give equal trees, whatever other tasks are searched beside them.
            on_batch: called after every batch with all trees.

        Returns:
            One tree a task, in the tasks' order.
        """
        started = time.perf_counter()
        growths = await plant(self.dynamics, tasks, seeds, self.config)
        if self.config.estimate_all:
            await estimate_nodes(self.value, [(each, each.tree.root) for each in growths if not each.tree.error])
        share_time(growths, started)
        growers = [_Grower(growth, self.grow(growth)) for growth in growths]
        for grower in growers:
            grower.go_on()
        while growers := [grower for grower in growers if grower.request is not None]:
            await self._serve(growers)
            if on_batch is not None:
                on_batch([growth.tree for growth in growths])
        return [growth.tree for growth in growths]

    async def _serve(self, growers: Sequence[_Grower]) -> None:
        """One batch: candidates, then steps, then estimates, each for all trees that need them by then."""
        started = time.perf_counter()
        for kind, answer in (("expand", self._expand), ("step", self._step), ("estimate", self._estimate)):
            requests = [(grower, grower.request) for grower in growers if grower.request is not None]
            asking = [(grower, request) for grower, request in requests if request.kind == kind]
            if wanted := [(grower.growth, path) for grower, request in asking for path in request.paths]:
                await answer(wanted)
            for grower, _ in asking:
                grower.go_on()
        share_time([grower.growth for grower in growers], started)

    async def _expand(self, wanted: Sequence[tuple[Growth, Path]]) -> None:
        nodes = [(growth, end(growth, path)) for growth, path in wanted]
        await expand(self.policy, nodes, self.config.candidates, self.config, self.critic)

    async def _step(self, wanted: Sequence[tuple[Growth, Path]]) -> None:
        stepping = [take_step(self.dynamics, growth, path, self.config.step_seconds) for growth, path in wanted]
        if len(stepping) == 1:
            await stepping[0]  # gather() would start a task for it, which takes longer than a fast environment's step
        else:
            await asyncio.gather(*stepping)
        if self.config.estimate_all:
            stepped = [(growth, path[-1].child) for growth, path in wanted]
            await estimate_nodes(self.value, [(growth, node) for growth, node in stepped if node is not None])

    async def _estimate(self, wanted: Sequence[tuple[Growth, Path]]) -> None:
        if not self.config.estimate_all:  # otherwise it was estimated after the step
            await estimate_nodes(self.value, [(growth, end(growth, path)) for growth, path in wanted])

    def room(self, growth: Growth) -> int:
        """How many simulations the tree may start side by side: at most ``leaves``, and none after it has failed,
        succeeded or reached a limit."""
        tree, limits = growth.tree, self.config.limits
        if tree.error or tree.root.ended or growth.succeeded or limits.reached(tree.budget):
            return 0
        if limits.simulations is None:
            return self.config.leaves
        return min(self.config.leaves, limits.simulations - tree.budget.simulations)

    def groups(self, growth: Growth, paths: Sequence[Path]) -> Iterator[Sequence[Path]]:
        """``paths`` in groups, each as large as there is room for when the group before is finished."""
        start = 0
        while start < len(paths) and (room := self.room(growth)):
            yield paths[start : start + room]
            start += room

    def opens(self, path: Path) -> bool:
        """Whether the tree may grow beyond ``path``."""
        node = path[-1].child
        return node is not None and not self.is_end(node)

    def is_end(self, node: Node) -> bool:
        """Whether the episode ended at ``node``, or a refused call led there, beyond which no tree grows."""
        return node.ended or (node.invalid and self.config.prune_invalid)

    def back_up(self, growth: Growth, path: Path) -> None:
        """Finish a simulation, and note whether it was the success that ends the search."""
        backup(path, growth, self.config.process_weight)
        leaf, enough = path[-1].child, self.config.stop_at_return
        if enough is not None and leaf is not None and leaf.terminated:
            growth.succeeded |= reaches(path_return(path, growth.tree.discount), enough)

    def rank(self, path: Path) -> tuple[float, float]:
        """How good a path looks, greater being better: its return G, closed by V(s) at its end; among equals, the
        probability Π P(s,a) of its actions.

        Process rewards and the critic's score of the last action are mixed into G by their weights. Without a ``Value``
        and before any reward, G is 0 and the probability alone decides, as in a beam search over sentences.
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

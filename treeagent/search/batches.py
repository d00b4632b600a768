"""The loop that all search methods share.

A method is a generator over one tree (``Searcher.grow``). It yields what it needs next: candidates, steps or estimates.
The loop collects these requests from all trees, asks for them together in one batch, and lets each generator go on. So
a method reads as if it searched one tree alone, and still shares its model calls with all others. Who answers does not
matter to it (``asking.py``): ``Searcher.run`` asks the policy, dynamics, value and critic.

A generator asks ``room`` how many simulations it may start. Limits and errors act there alone, so that every method is
cut off in the same way.
"""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from treeagent.search.asking import (
    Answer,
    AskTell,
    Conversation,
    WantActions,
    Wanted,
    WantScores,
    WantStep,
    WantValue,
)
from treeagent.search.config import SearchConfig
from treeagent.search.decide import end_rank
from treeagent.search.growth import (
    Growth,
    arrive,
    attempt,
    backup,
    end,
    expand,
    note_estimate,
    plant,
    score,
    share_time,
)
from treeagent.search.node import Edge, Node, Tree, path_return, reaches
from treeagent.search.stopping import LeastGain
from treeagent.types import Critic, Dynamics, Estimate, Policy, Proposal, Task, Transition, Value

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
        least_gain: ends the search of a task before its limits do.
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
        least_gain: LeastGain | None = None,
    ) -> None:
        self.policy = policy
        self.dynamics = dynamics
        self.config = config
        self.value = value
        self.critic = critic
        self.noise = noise
        self.least_gain = least_gain

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
        share_time(growths, started)
        search = AskTell(growths, self.converse(growths, on_batch))
        while wanted := search.ask():
            search.tell(await self._answer(wanted))
        return search.trees

    def converse(self, growths: Sequence[Growth], on_batch: OnBatch | None = None) -> Conversation:
        """Grow trees by what is told of them; ``on_batch`` as in ``run``."""
        started = time.perf_counter()
        if self.config.estimate_all:
            yield from self._values([(each, each.tree.root) for each in growths if not each.tree.error])
        share_time(growths, started)
        growers = [_Grower(growth, self.grow(growth)) for growth in growths]
        for grower in growers:
            grower.go_on()
        while growers := [grower for grower in growers if grower.request is not None]:
            yield from self._serve(growers)
            if on_batch is not None:
                on_batch([growth.tree for growth in growths])

    def _serve(self, growers: Sequence[_Grower]) -> Conversation:
        """One batch: candidates, then steps, then estimates, each for all trees that need them by then."""
        started = time.perf_counter()
        for kind, serve in (("expand", self._expand), ("step", self._step), ("estimate", self._estimate)):
            requests = [(grower, grower.request) for grower in growers if grower.request is not None]
            asking = [(grower, request) for grower, request in requests if request.kind == kind]
            if wanted := [(grower.growth, path) for grower, request in asking for path in request.paths]:
                yield from serve(wanted)
            for grower, _ in asking:
                grower.go_on()
        share_time([grower.growth for grower in growers], started)

    def _expand(self, wanted: Sequence[tuple[Growth, Path]]) -> Conversation:
        """Sample candidates at the end of each path."""
        yield from self._sample([(growth, end(growth, path)) for growth, path in wanted])

    def _sample(self, nodes: Sequence[tuple[Growth, Node]], *, more_later: bool = False) -> Conversation:
        """Sample candidates at each node, and let the critic score them; ``more_later`` as in ``growth.expand``."""
        proposals = yield from self._propose(nodes)
        for (growth, node), proposal in zip(nodes, proposals, strict=True):
            expand(growth, node, proposal, self.count(growth, node), more_later=more_later)
        # A single candidate has no rival, so that its score would be idle.
        rivals = [(growth, node) for growth, node in nodes if len(node.edges) > 1]
        if rivals and self.critic is not None and self.config.critic_weight:
            scores = yield [WantScores(node.state, [edge.action for edge in node.edges]) for _, node in rivals]
            for (growth, node), each in zip(rivals, cast(Sequence[Sequence[float]], scores), strict=True):
                score(growth, node, each)

    def _propose(
        self, nodes: Sequence[tuple[Growth, Node]]
    ) -> Generator[Sequence[Wanted], Sequence[Answer], Sequence[Proposal]]:
        counts = [self.count(growth, node) for growth, node in nodes]
        proposals = yield [
            WantActions(node.state, count, growth.next_seed())
            for (growth, node), count in zip(nodes, counts, strict=True)
        ]
        return cast(Sequence[Proposal], proposals)

    def count(self, growth: Growth, node: Node) -> int:
        """How many candidates are sampled at a node at once."""
        return self.config.candidates

    def _step(self, wanted: Sequence[tuple[Growth, Path]]) -> Conversation:
        answers = yield [WantStep(end(growth, path[:-1]).state, path[-1].action) for growth, path in wanted]
        for (growth, path), answer in zip(wanted, cast(Sequence[Transition | Exception], answers), strict=True):
            arrive(growth, path, answer)
        if self.config.estimate_all:
            stepped = [(growth, path[-1].child) for growth, path in wanted]
            yield from self._values([(growth, node) for growth, node in stepped if node is not None])

    def _estimate(self, wanted: Sequence[tuple[Growth, Path]]) -> Conversation:
        if not self.config.estimate_all:  # otherwise it was estimated after the step
            yield from self._values([(growth, end(growth, path)) for growth, path in wanted])

    def _values(self, nodes: Sequence[tuple[Growth, Node]]) -> Conversation:
        """Estimate V(s) of each node. A node after a step without an answer is left out, because an estimate there
        would be made up."""
        nodes = [(growth, node) for growth, node in nodes if not node.unknown]
        if self.value is None or not nodes:
            return
        estimates = yield [WantValue(node.state) for _, node in nodes]
        for (growth, node), estimate in zip(nodes, cast(Sequence[Estimate], estimates), strict=True):
            note_estimate(growth, node, estimate)

    async def _answer(self, wanted: Sequence[Wanted]) -> Sequence[Answer]:
        """What the policy, the dynamics, the value or the critic says. All of a batch is wanted of one of them."""
        states = [each.state for each in wanted]
        if isinstance(wanted[0], WantStep):
            return await self._take_steps(cast(Sequence[WantStep], wanted))
        if isinstance(wanted[0], WantActions):
            return await self._propose_all(cast(Sequence[WantActions], wanted))
        if isinstance(wanted[0], WantScores):
            assert self.critic is not None
            return await self.critic.rank(states, [each.actions for each in cast(Sequence[WantScores], wanted)])
        assert self.value is not None
        return await self.value.estimate(states)

    async def _propose_all(self, wanted: Sequence[WantActions]) -> Sequence[Proposal]:
        """One call of the policy for all states at which equally many candidates are wanted."""
        proposals = dict[int, Proposal]()
        for count in sorted({each.count for each in wanted}):
            places = [place for place, each in enumerate(wanted) if each.count == count]
            states, seeds = [wanted[place].state for place in places], [wanted[place].seed for place in places]
            proposals |= zip(places, await self.policy.propose(states, count, seeds), strict=True)
        return [proposals[place] for place in range(len(wanted))]

    async def _take_steps(self, wanted: Sequence[WantStep]) -> Sequence[Transition | Exception]:
        steps = [attempt(self.dynamics, each.state, each.action, self.config.step_seconds) for each in wanted]
        if len(steps) == 1:
            return [await steps[0]]  # gather() would start a task for it, which takes longer than a fast step
        return await asyncio.gather(*steps)

    def room(self, growth: Growth) -> int:
        """How many simulations the tree may start side by side: at most ``leaves``, and none after it has failed,
        succeeded, reached a limit or has too little to gain."""
        tree, limits = growth.tree, self.config.limits
        if tree.error or tree.root.ended or growth.succeeded or limits.reached(tree.budget):
            return 0
        if self.least_gain and self.least_gain.reached(growth.best, limits.share(tree.budget)):
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
        """Finish a simulation, and note whether it was the success that ends the search, and the best end so far."""
        backup(path, growth, self.config.process_weight)
        leaf, enough = path[-1].child, self.config.stop_at_return
        if self.least_gain and leaf is not None and leaf.terminated:
            rank = end_rank(growth.tree, path, leaf, self.least_gain.likelihood_weight)
            growth.best = max(growth.best, rank[1])
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

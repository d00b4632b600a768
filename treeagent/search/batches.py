"""The loop that all search methods share.

A method is a generator over one tree (``Searcher.grow``). It yields requests: for candidates, steps or estimates. The
loop collects the requests of all trees, answers those of one kind together, and resumes each generator with its answer.
A method is therefore written as if it searched a single tree, and still shares its model calls with the other trees. It
does not depend on who answers (``requests.py``): ``Searcher.run`` asks the policy, dynamics and value. A tree
with a slow step does not keep the others waiting (``pending.py``).

A generator calls ``simulations_allowed`` to learn how many simulations it may start. Limits and errors act only there,
so that every method is cut off in the same way.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import cast

from treeagent.search.config import SearchConfig
from treeagent.search.decide import end_rank
from treeagent.search.growth import (
    Growth,
    add_step_result,
    backup,
    close_reopened,
    create_trees,
    expand,
    last_node,
    prune_repeat,
    reopen,
    share_time,
    store_estimate,
    try_step,
)
from treeagent.search.node import Edge, Node, Tree, path_return, reaches, repeats_state
from treeagent.search.pending import PendingRequests
from treeagent.search.requests import (
    KINDS,
    Answer,
    Broker,
    OnBatch,
    Request,
    RequestGenerator,
    WaitingTree,
    WantActions,
    WantStep,
    WantValue,
)
from treeagent.search.stopping import Enough
from treeagent.types import (
    Dynamics,
    Estimate,
    Policy,
    Proposal,
    Task,
    Transition,
    UserError,
    Value,
    is_concurrent,
)

_MOST_FREE = 1000
"""Most simulations that may spend nothing of the limits, as where only tokens are limited and a policy samples none."""
Path = list[Edge]
"""The edges from the root to a node or an untried edge of the tree."""


class Searcher(ABC):
    """Base class of the search methods. Grows one tree for each task, many trees at once.

    Args:
        value: estimates V(s). Without it, a leaf adds 0 to the rewards on its path.
        noise: False leaves out the noise at the root, as evaluation does.
        enough: may end the search of a task once good ends are found; None never does.
    """

    def __init__(
        self,
        policy: Policy,
        dynamics: Dynamics,
        config: SearchConfig,
        value: Value | None = None,
        *,
        noise: bool = True,
        enough: Enough | None = None,
    ) -> None:
        self.policy = policy
        self.dynamics = dynamics
        self.config = config
        self.value = value
        self.noise = noise
        self.enough = enough

    async def run(self, tasks: Sequence[Task], seeds: Sequence[int], on_batch: OnBatch | None = None) -> list[Tree]:
        """Search each task.

        Args:
            seeds: one for each task. Equal seeds give equal trees, whatever other tasks are searched at the same time.
            on_batch: called after every batch with all trees.

        Returns:
            One tree for each task, in the order of the tasks.
        """
        start = time.perf_counter()
        growths = await create_trees(self.dynamics, tasks, seeds, self.config)
        if self.prunes_repeats:
            _require_keys([growth.tree for growth in growths])
        share_time(growths, start)
        broker = Broker(growths, map(self.request_generator, growths), on_batch)
        single: list[tuple[type[Request], Callable[[Request], Awaitable[Answer]]]] = [(WantStep, self._step_one)]
        if is_concurrent(self.policy):
            single.append((WantActions, self._propose_one))
        if is_concurrent(self.value):
            single.append((WantValue, self._estimate_one))
        async with PendingRequests(broker, single) as pending:
            while broker.growing:
                for kind in KINDS:
                    if kind is WantStep:
                        await pending.process()
                    elif kind in pending.batched and (waiting := broker.take(kind)):
                        started = time.perf_counter()
                        answers = await self._answer_batch(waiting)
                        pending.model_seconds += time.perf_counter() - started
                        broker.deliver(waiting, answers)
                broker.close_batch()
        return broker.trees

    def request_generator(self, growth: Growth) -> RequestGenerator[None]:
        """The generator that grows one tree, by the answers that it is sent."""
        if self.config.estimate_all and not growth.tree.error:
            yield from self.estimate(growth, [[]])
        yield from self.grow(growth)
        close_reopened(growth)

    @abstractmethod
    def grow(self, growth: Growth) -> RequestGenerator[None]:
        """Grow one tree by ``expand``, ``step`` and ``estimate``. After a failed step the tree has an error."""

    def expand(self, growth: Growth, paths: Sequence[Path]) -> RequestGenerator[None]:
        """Sample candidates at the end of each path."""
        return self.sample(growth, [last_node(growth, path) for path in paths])

    def sample(self, growth: Growth, nodes: Sequence[Node], *, may_widen: bool = False) -> RequestGenerator[None]:
        """Sample candidates at each node. ``may_widen`` is as in ``growth.expand``."""
        if not nodes:
            return
        proposals = cast("Sequence[Proposal]", (yield self.action_requests(growth, nodes)))
        for node, proposal in zip(nodes, proposals, strict=True):
            expand(growth, node, proposal, self.candidate_count(growth, node), may_widen=may_widen)

    def action_requests(self, growth: Growth, nodes: Sequence[Node]) -> Sequence[WantActions]:
        return [WantActions(node.state, self.candidate_count(growth, node), growth.next_seed()) for node in nodes]

    def candidate_count(self, growth: Growth, node: Node) -> int:
        """How many candidates are sampled at once at a node."""
        return self.config.candidates

    def step(self, growth: Growth, paths: Sequence[Path], *, estimate: bool = True) -> RequestGenerator[None]:
        """Step through the last edge of each path. With ``estimate``, also estimate V(s) of the states reached."""
        if not paths:
            return
        answers = yield [WantStep(last_node(growth, path[:-1]).state, path[-1].action) for path in paths]
        for path, answer in zip(paths, cast("Sequence[Transition | Exception]", answers), strict=True):
            add_step_result(growth, path, answer)
            if self.prunes_repeats and repeats_state(growth.tree, path):
                prune_repeat(growth, path, self.enough.failure if self.enough else 0.0)
        if self.value is None or not (estimate or self.config.estimate_all):
            return
        yield from self.estimate(growth, [path for path in paths if path[-1].child is not None])

    def estimate(self, growth: Growth, paths: Sequence[Path]) -> RequestGenerator[None]:
        """Estimate V(s) at the end of each path. Not for states that ``step`` has estimated."""
        # After a step that has no answer, an estimate would have no basis. A repeat has its value already.
        nodes = [last_node(growth, path) for path in paths]
        paths = [path for path, node in zip(paths, nodes, strict=True) if not (node.unknown or node.repeat)]
        if self.value is None or not paths:
            return
        answers = yield [WantValue(last_node(growth, path).state) for path in paths]
        for path, answer in zip(paths, cast("Sequence[Estimate]", answers), strict=True):
            store_estimate(growth, path, answer)

    async def _answer_batch(self, waiting: Sequence[WaitingTree]) -> Sequence[Answer]:
        """The answers of the policy or the value to the requests of these trees, all of one kind."""
        requests = [each for tree in waiting for each in tree.requests]
        if isinstance(requests[0], WantActions):
            return await self._propose_all(cast("Sequence[WantActions]", requests))
        states = [each.state for each in requests]
        assert self.value is not None
        return await self.value.estimate(states)

    async def _propose_all(self, requests: Sequence[WantActions]) -> Sequence[Proposal]:
        """Call the policy once for all states that want the same number of candidates."""
        proposals = dict[int, Proposal]()
        for count in sorted({each.count for each in requests}):
            indices = [index for index, each in enumerate(requests) if each.count == count]
            states, seeds = [requests[index].state for index in indices], [requests[index].seed for index in indices]
            proposals |= zip(indices, await self.policy.propose(states, count, seeds), strict=True)
        return [proposals[index] for index in range(len(requests))]

    async def _propose_one(self, request: Request) -> Proposal:
        assert isinstance(request, WantActions)
        [proposal] = await self.policy.propose([request.state], request.count, [request.seed])
        return proposal

    async def _estimate_one(self, request: Request) -> Estimate:
        assert isinstance(request, WantValue) and self.value is not None
        [estimate] = await self.value.estimate([request.state])
        return estimate

    def _step_one(self, request: Request) -> Awaitable[Transition | Exception]:
        assert isinstance(request, WantStep)
        return try_step(self.dynamics, request.state, request.action, self.config.step_seconds)

    def simulations_allowed(self, growth: Growth) -> int:
        """How many simulations the tree may start in parallel: at most ``leaves``, and none after the tree failed,
        succeeded, reached a limit or has too little to gain."""
        tree, limits = growth.tree, self.config.limits
        if tree.error or tree.root.ended or growth.succeeded or limits.reached(tree.budget):
            return 0
        if tree.budget.simulations >= _MOST_FREE and not limits.share(tree.budget):
            tree.error = f"{_MOST_FREE:,} simulations spent nothing of the limits: set limits.simulations too"
            return 0
        if self.enough and self.enough.gains_too_little(growth.best, limits.share(tree.budget)):
            return 0
        if limits.simulations is None:
            return self.config.leaves
        return min(self.config.leaves, limits.simulations - tree.budget.simulations)

    def is_finished(self, growth: Growth) -> bool:
        """Whether everything worth finding in the tree was found. Reopens an exhausted tree without a good end."""
        if not growth.tree.root.exhausted:
            return False
        return (self.enough is not None and self.enough.is_good(growth.best)) or not reopen(growth)

    def groups(self, growth: Growth, paths: Sequence[Path]) -> Iterator[Sequence[Path]]:
        """Split ``paths`` into groups. Each group is as large as ``simulations_allowed`` when the previous one is
        finished."""
        start = 0
        while start < len(paths) and (room := self.simulations_allowed(growth)):
            yield paths[start : start + room]
            start += room

    @property
    def prunes_repeats(self) -> bool:
        """Whether the tree does not grow beyond steps that lead back to an earlier state of their path."""
        return self.config.prune_repeats

    def is_expandable(self, path: Path) -> bool:
        """Whether the tree may grow beyond ``path``."""
        node = path[-1].child
        return node is not None and not self.is_end(node)

    def is_end(self, node: Node) -> bool:
        """Whether the tree does not grow beyond ``node``: the episode ended there, the path led back to an earlier
        state (with ``prune_repeats``), or a refused call led there (with ``prune_invalid``)."""
        return node.ended or node.repeat or (node.invalid and self.config.prune_invalid)

    def back_up(self, growth: Growth, path: Path) -> None:
        """Finish a simulation. Note whether it was a success that ends the search, and update the best end so far."""
        backup(growth, path)
        leaf, sought = path[-1].child, self.config.stop_at_return
        if self.enough and leaf is not None and leaf.terminated:
            rank = end_rank(growth.tree, path, leaf, self.enough.likelihood_weight)
            growth.best = max(growth.best, growth.tree.root.state.paid + rank[1])
        if sought is None or leaf is None or not leaf.final:
            return
        # At a limit, V(s) is no return: it would not be collected (``decide.end_rank``).
        if leaf.terminated or path[-1].reward is not None:
            growth.succeeded |= reaches(path_return(path, growth.tree.discount), sought)

    def rank(self, path: Path) -> tuple[float, float]:
        """Sort key of a path, greater being better: its return G, with V(s) added at its end; among equals, the
        probability Π P(s,a) of its actions.

        Process rewards are mixed into G by their weight. Without a ``Value`` and before any reward,
        G is 0 and the probability alone decides, as in a beam search over sentences.
        """
        config, last = self.config, path[-1]
        assert last.child is not None
        value = last.child.leaf_value(last.reward)
        for edge in reversed(path):
            value = (edge.reward or 0.0) + edge.discount(config.discount) * value
        return value, math.prod(edge.prior for edge in path)


def _require_keys(trees: Sequence[Tree]) -> None:
    """Check that the environment gives keys of its states.

    Raises:
        UserError: it gives none.
    """
    for tree in trees:
        if not tree.error and tree.root.state.place is None:
            raise UserError(
                f"search.prune_repeats compares keys of states, but {tree.task.id} has none: define state_key in the "
                "environment, or set search.prune_repeats=false"
            )

"""What all search methods share. A method is a coroutine that grows one tree (``Searcher.grow``).

It is written as if it searched a single tree, by ``sample``, ``step`` and ``estimate``. Many trees grow at once, and
share the calls of the models (``together.py``). Before a simulation starts, a method asks ``simulations_allowed``.
Limits and errors act only there, so that every method is cut off in the same way.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, ClassVar

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from treeagent.seams import checked, resolve
from treeagent.search.config import METHODS, SearchConfig
from treeagent.search.decide import end_rank
from treeagent.search.growth import (
    Growth,
    add_candidates,
    backup,
    create_trees,
    last_node,
    prune_repeat,
    reopen,
    store_estimate,
    take_step,
)
from treeagent.search.limits import Enough
from treeagent.search.node import Edge, Node, Tree, path_return, repeats_state
from treeagent.search.together import Together
from treeagent.types import Dynamics, Estimate, Policy, Proposal, State, Task, UserError, Value, is_concurrent

MOST_FREE = 1000
"""Most simulations that may spend nothing of the limits, as where only tokens are limited and a policy samples none."""

Path = list[Edge]
"""The edges from the root to a node or an untried edge of the tree."""
OnBatch = Callable[[Sequence[Tree]], None]
"""A function that is called between the calls of models with all trees in their current state."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class NoOptions:
    """The options of a method that has none."""


class Searcher(ABC):
    """Base class of the search methods. Grows one tree for each task, many trees at once.

    Args:
        value: estimates V(s). Without it, a leaf adds 0 to the rewards on its path.
        noise: False leaves out the noise at the root, as evaluation does.
        enough: may end the search of a task once good ends are found; None never does.

    Raises:
        UserError: ``config.options`` do not fit the method.
    """

    Options: ClassVar[type[Any]] = NoOptions
    """A pydantic dataclass: the method's own settings."""

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
        self.policy, self.dynamics, self.config, self.value = policy, dynamics, config, value
        self.noise, self.enough = noise, enough
        self.options: Any = checked(self.Options, config.options, f"search method {config.method!r}")

    async def run(self, tasks: Sequence[Task], seeds: Sequence[int], on_batch: OnBatch | None = None) -> list[Tree]:
        """Search each task.

        Args:
            seeds: one for each task. Equal seeds give equal trees, whatever other tasks are searched at the same time.
            on_batch: called before every call of a model, and when a tree has stopped growing, with all trees.

        Returns:
            One tree for each task, in the order of the tasks.
        """
        asks = [
            ask
            for ask, model in ((self._propose, self.policy), (self._estimate, self.value))
            if not is_concurrent(model)
        ]
        trees = list[Tree]()
        self.models = Together(asks, len(tasks), lambda: on_batch(trees) if on_batch else None)
        growths = await create_trees(self.dynamics, tasks, seeds, self.config)
        trees += [growth.tree for growth in growths]
        if self.prunes_repeats:
            _require_keys(trees)
        growing = [asyncio.create_task(self._grow(growth)) for growth in growths]
        try:
            await asyncio.gather(*growing)
        finally:
            for task in growing:
                task.cancel()
            await asyncio.gather(*growing, return_exceptions=True)
            await self.models.close()
        return trees

    async def _grow(self, growth: Growth) -> None:
        self._tell_time(growth)
        if self.config.estimate_all and not growth.tree.error:
            await self.estimate(growth, [[]])
        await self.grow(growth)
        self.models.leave()

    @abstractmethod
    async def grow(self, growth: Growth) -> None:
        """Grow one tree by ``sample``, ``step`` and ``estimate``. After a failed step the tree has an error."""

    async def sample(
        self, growth: Growth, nodes: Sequence[Node], counts: Sequence[int] = (), *, may_widen: bool = False
    ) -> None:
        """Sample candidates at each node: ``config.candidates``, or as many as ``counts`` says. ``may_widen`` is as in
        ``growth.add_candidates``."""
        counts = counts or [self.config.candidates] * len(nodes)
        proposals = await self.proposals(growth, nodes, counts)
        for node, count, proposal in zip(nodes, counts, proposals, strict=True):
            add_candidates(growth, node, proposal, count, may_widen=may_widen)

    async def proposals(self, growth: Growth, nodes: Sequence[Node], counts: Sequence[int]) -> Sequence[Proposal]:
        """Actions of the policy at each node, as many as ``counts`` says."""
        if not nodes:
            return ()
        asked = [(node.state, count, growth.next_seed()) for node, count in zip(nodes, counts, strict=True)]
        return await self.models.ask(self._propose, growth.number, asked)

    async def step(self, growth: Growth, paths: Sequence[Path], *, estimate: bool = True) -> None:
        """Step through the last edge of each path. With ``estimate``, also estimate V(s) of the states reached."""
        seconds = self.config.step_seconds
        if len(paths) == 1:
            await take_step(self.dynamics, growth, paths[0], seconds)
        elif paths:
            await asyncio.gather(*[take_step(self.dynamics, growth, path, seconds) for path in paths])
        if self.prunes_repeats:
            for path in paths:
                if repeats_state(growth.tree, path):
                    prune_repeat(growth, path, self.enough.failure if self.enough else 0.0)
        if estimate or self.config.estimate_all:
            await self.estimate(growth, [path for path in paths if path[-1].child is not None])

    async def estimate(self, growth: Growth, paths: Sequence[Path]) -> None:
        """Estimate V(s) at the end of each path. Not for states that ``step`` has estimated."""
        if self.value is None or not paths:
            return
        asked, states = list[Path](), list[State]()
        for path in paths:
            node = last_node(growth, path)
            # After a step that has no answer, an estimate would have no basis. A repeat has its value already.
            if not (node.unknown or node.repeat):
                asked.append(path)
                states.append(node.state)
        if not asked:
            return
        for path, answer in zip(asked, await self.models.ask(self._estimate, growth.number, states), strict=True):
            store_estimate(growth, path, answer)

    async def _propose(self, asked: Sequence[tuple[State, int, int]]) -> Sequence[Proposal]:
        """Call the policy once for all states that want the same number of candidates."""
        states, counts, seeds = zip(*asked, strict=True)
        if len(different := sorted(set(counts))) == 1:
            return await self.policy.propose(states, counts[0], seeds)
        proposals = dict[int, Proposal]()
        for count in different:
            places = [place for place, each in enumerate(counts) if each == count]
            some = await self.policy.propose([states[at] for at in places], count, [seeds[at] for at in places])
            proposals |= zip(places, some, strict=True)
        return [proposals[place] for place in range(len(asked))]

    async def _estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        assert self.value is not None
        return await self.value.estimate(states)

    def simulations_allowed(self, growth: Growth) -> int:
        """How many simulations the tree may start in parallel: at most ``leaves``, and none after the tree failed,
        reached a limit or has too little to gain."""
        tree, limits, leaves = growth.tree, self.config.limits, self.config.leaves
        if tree.error or tree.root.ended or (share := limits.share(tree.budget)) >= 1:
            return 0
        if tree.budget.simulations >= MOST_FREE and not share:
            tree.error = f"{MOST_FREE:,} simulations spent nothing of the limits: set limits.simulations too"
            return 0
        if self.enough and self.enough.gains_too_little(growth.best, share):
            return 0
        return leaves if limits.simulations is None else min(leaves, limits.simulations - tree.budget.simulations)

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
        state (with ``prune_repeats``), or a refused call led there, which leaves the environment unchanged."""
        return node.terminated or node.truncated or node.repeat or node.invalid

    def back_up(self, growth: Growth, path: Path) -> None:
        """Finish a simulation, and update the best end so far."""
        self._tell_time(growth)
        backup(growth, path)
        leaf = path[-1].child
        if self.enough and leaf is not None and leaf.terminated:
            rank = end_rank(growth.tree, path, leaf, self.enough.likelihood_weight)
            growth.best = max(growth.best, growth.tree.root.state.paid + rank[1])

    def _tell_time(self, growth: Growth) -> None:
        growth.tree.budget.seconds = self.models.share_time()

    def rank(self, path: Path) -> tuple[float, float]:
        """Sort key of a path, greater being better: its return G, with V(s) added at its end; among equals, the
        probability Π P(s,a) of its actions.

        Without a ``Value`` and before any reward, G is 0 and the probability alone decides, as in a beam search over
        sentences.
        """
        return path_return(path, self.config.discount), prod(edge.prior for edge in path)


def make_search(
    policy: Policy,
    dynamics: Dynamics,
    config: SearchConfig,
    value: Value | None = None,
    *,
    noise: bool = True,
    enough: Enough | None = None,
) -> Searcher:
    """Create a search of the method that ``config.method`` names. The other arguments are those of ``Searcher``.

    Raises:
        UserError: there is no such method, or ``config.options`` do not fit it.
    """
    method: type[Searcher] = resolve("search.method", config.method, METHODS)
    return method(policy, dynamics, config, value, noise=noise, enough=enough)


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

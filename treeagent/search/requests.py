"""What a search asks for, as data: the requests of all trees are collected, answered in batches, and the answers passed
back."""

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

from treeagent.search.growth import Growth, share_time
from treeagent.search.node import Tree
from treeagent.types import Action, Estimate, Proposal, State, Transition


@dataclass(frozen=True, slots=True)
class WantActions:
    """Request for candidate actions in ``state``. The answer is a ``Proposal``."""

    state: State
    count: int
    """How many actions to sample, including duplicates."""
    seed: int
    """Random seed for the samples. If the actions depend only on it and the state, equal seeds give equal trees."""


@dataclass(frozen=True, slots=True)
class WantStep:
    """Request for the result of ``action`` in ``state``. The answer is a ``Transition``, or the exception that the step
    raised. An exception ends the tree, which stores the reason in ``Tree.error``."""

    state: State
    action: Action


@dataclass(frozen=True, slots=True)
class WantValue:
    """Request for V(s) of ``state``. The answer is an ``Estimate``."""

    state: State


Request = WantActions | WantStep | WantValue
Answer = Proposal | Transition | Exception | Estimate
Result = TypeVar("Result")
RequestGenerator = Generator[Sequence[Request], Sequence[Answer], Result]
"""A generator that grows one tree. It yields one or more requests of one kind, and is sent one answer for each, in the
same order."""
OnBatch = Callable[[Sequence[Tree]], None]
"""A function that is called after every batch with all trees in their current state."""

KINDS: tuple[type[Request], ...] = (WantActions, WantStep, WantValue)
"""The kinds of requests, in the order in which a simulation makes them. A batch asks for each kind once."""


@dataclass(slots=True, eq=False)
class WaitingTree:
    """A tree that is being searched, with its current requests. It waits until all of them are answered."""

    index: int
    """The index of the tree among all trees."""
    growth: Growth
    generator: RequestGenerator[None]
    requests: Sequence[Request] = ()
    """Requests of one kind; empty once the search of the tree is over."""


class Broker:
    """Collects the requests of many trees by kind, and passes the answers back to them.

    A tree continues when its requests are answered, whatever the other trees wait for. The trees therefore do not
    depend on when a request is answered, or on which others it is answered together with.

    Args:
        generators: one for each tree.
        on_batch: called by ``close_batch``.
    """

    def __init__(
        self, growths: Sequence[Growth], generators: Iterable[RequestGenerator[None]], on_batch: OnBatch | None = None
    ) -> None:
        self._started = time.perf_counter()
        self._growths, self._on_batch = growths, on_batch
        self._pending = {kind: list[WaitingTree]() for kind in KINDS}
        pairs = zip(growths, generators, strict=True)
        self._growing = [WaitingTree(index, *each) for index, each in enumerate(pairs)]
        self.deliver(self._growing, ())  # starts the generators
        self._growing = [tree for tree in self._growing if tree.requests]

    @property
    def trees(self) -> list[Tree]:
        """The trees in their current state, one for each task, in the order of the tasks."""
        return [growth.tree for growth in self._growths]

    @property
    def growing(self) -> int:
        """Number of trees whose search was not over when the last batch closed."""
        return len(self._growing)

    def has_requests(self, *kinds: type[Request]) -> bool:
        """Whether there are requests of one of these kinds that ``take`` has not returned yet."""
        return any(self._pending[kind] for kind in kinds)

    def take(self, kind: type[Request]) -> list[WaitingTree]:
        """The trees with requests of one kind that were not taken yet, in order."""
        if not (waiting := self._pending[kind]):
            return []
        self._pending[kind] = []
        waiting.sort(key=attrgetter("index"))
        return waiting

    def deliver(self, waiting: Sequence[WaitingTree], answers: Sequence[Answer]) -> None:
        """Pass answers to trees: first all answers for the first tree, then those for the next."""
        start = 0
        for tree in waiting:
            stop = start + len(tree.requests)
            try:
                generator = tree.generator
                requests = generator.send(answers[start:stop]) if tree.requests else next(generator)
            except StopIteration:
                tree.requests = ()
            else:
                tree.requests = requests
                self._pending[type(requests[0])].append(tree)
            start = stop

    def close_batch(self) -> None:
        """Share the time since the last batch among the trees that were growing then, and call ``on_batch``."""
        share_time([tree.growth for tree in self._growing], self._started)
        self._started = time.perf_counter()
        self._growing = [tree for tree in self._growing if tree.requests]
        if self._on_batch is not None:
            self._on_batch(self.trees)

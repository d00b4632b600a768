"""Ask/tell: a search states its next requests as data, and the caller returns the answers.

The search only chooses what to do next. A driver takes its requests, answers them by any means, and passes the answers
back:

    search = ask_tell(SearchConfig(Limits(simulations=64)), states, seeds)
    while wanted := search.ask():
        search.tell([answer(each) for each in wanted])

``Searcher.run`` is such a loop over a ``Policy``, a ``Dynamics``, a ``Value`` and a ``Critic``. A driver need not
answer all trees at the same time.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

from treeagent.search.growth import Growth, share_time
from treeagent.search.node import Tree
from treeagent.types import Action, Estimate, Proposal, State, Transition, UserError


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


@dataclass(frozen=True, slots=True)
class WantScores:
    """Request for a critic's score of each of ``actions`` in ``state``, in reward units. The answer is a sequence of
    floats."""

    state: State
    actions: Sequence[Action]


Wanted = WantActions | WantStep | WantValue | WantScores
Answer = Proposal | Transition | Exception | Estimate | Sequence[float]
Result = TypeVar("Result")
Conversation = Generator[Sequence[Wanted], Sequence[Answer], Result]
"""A generator that grows one tree. It yields one or more requests of one kind, and is sent one answer for each, in the
same order."""
OnBatch = Callable[[Sequence[Tree]], None]
"""A function that is called after every batch with all trees in their current state."""

KINDS: tuple[type[Wanted], ...] = (WantActions, WantScores, WantStep, WantValue)
"""The kinds of requests, in the order in which a simulation makes them. A batch asks for each kind once."""
_ANSWERS: dict[type[Wanted], tuple[type, ...]] = {
    WantActions: (Proposal,),
    WantScores: (Sequence,),
    WantStep: (Transition, Exception),
    WantValue: (Estimate,),
}


@dataclass(slots=True, eq=False)
class Question:
    """The current requests of one tree. The tree waits until all of them are answered."""

    place: int
    """The index of the tree among all trees."""
    growth: Growth
    conversation: Conversation[None]
    wanted: Sequence[Wanted] = ()
    """Requests of one kind; empty once the search of the tree is over."""


class Broker:
    """Collects the questions of many trees by kind, and passes the answers back to them.

    Each tree has one question at a time and continues when that is answered, whatever the other trees wait for. The
    trees therefore do not depend on when a question is answered, or on which others it is answered together with.

    Args:
        conversations: one for each tree.
        on_batch: called by ``close_batch``.
    """

    def __init__(
        self, growths: Sequence[Growth], conversations: Iterable[Conversation[None]], on_batch: OnBatch | None = None
    ) -> None:
        self._started = time.perf_counter()
        self._growths, self._on_batch = growths, on_batch
        self._waiting = {kind: list[Question]() for kind in KINDS}
        talks = zip(growths, conversations, strict=True)
        self._growing = [Question(place, *each) for place, each in enumerate(talks)]
        self.tell(self._growing, ())  # starts the conversations
        self._growing = [question for question in self._growing if question.wanted]

    @property
    def trees(self) -> list[Tree]:
        """The trees in their current state, one for each task, in the order of the tasks."""
        return [growth.tree for growth in self._growths]

    @property
    def growing(self) -> int:
        """Number of trees whose search was not over when the last batch closed."""
        return len(self._growing)

    def waits(self, *kinds: type[Wanted]) -> bool:
        """Whether there is a question of one of these kinds that ``take`` has not returned yet."""
        return any(self._waiting[kind] for kind in kinds)

    def take(self, kind: type[Wanted]) -> list[Question]:
        """The questions of one kind that were not taken yet, in the order of the trees."""
        if not (questions := self._waiting[kind]):
            return []
        self._waiting[kind] = []
        questions.sort(key=attrgetter("place"))
        return questions

    def tell(self, questions: Sequence[Question], answers: Sequence[Answer]) -> None:
        """Pass answers to questions: first all answers to the first question, then those to the next."""
        start, waiting = 0, self._waiting
        for question in questions:
            stop = start + len(question.wanted)
            try:
                talk = question.conversation
                wanted = talk.send(answers[start:stop]) if question.wanted else next(talk)
            except StopIteration:
                question.wanted = ()
            else:
                question.wanted = wanted
                waiting[type(wanted[0])].append(question)
            start = stop

    def close_batch(self) -> None:
        """Share the time since the last batch among the trees that were growing then, and call ``on_batch``."""
        share_time([question.growth for question in self._growing], self._started)
        self._started = time.perf_counter()
        self._growing = [question for question in self._growing if question.wanted]
        if self._on_batch is not None:
            self._on_batch(self.trees)

    def batches(self) -> Iterator[list[Question]]:
        """Yield the questions of one kind after another. Each batch must be answered before the next is requested."""
        while self.waits(*KINDS):
            for kind in KINDS:
                if questions := self.take(kind):
                    yield questions
            self.close_batch()


class AskTell:
    """Trees that grow as their requests are answered. Made by ``treeagent.search.ask_tell``."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._batches = broker.batches()
        self._next()

    @property
    def trees(self) -> list[Tree]:
        """The trees in their current state, one for each task, in the order of the tasks."""
        return self._broker.trees

    def ask(self) -> Sequence[Wanted]:
        """The next requests of the trees, all of one kind, as one batch. Empty once every search is over."""
        return self._wanted

    def tell(self, answers: Sequence[Answer]) -> None:
        """Pass one answer for each request of ``ask``, in the same order, and let the searches continue.

        Raises:
            UserError: an answer is missing or of the wrong type.
            ValueError: a number in an answer is NaN or infinite, or an action does not have one log-probability per
                token. The searches cannot continue after this.
        """
        if len(answers) != len(self._wanted):
            raise UserError(f"{len(self._wanted)} answers are wanted, not {len(answers)}: tell one each, in order")
        for wanted, answer in zip(self._wanted, answers, strict=True):
            if not isinstance(answer, kinds := _ANSWERS[type(wanted)]):
                names = " or ".join(kind.__name__ for kind in kinds)
                raise UserError(f"a {type(wanted).__name__} was answered by {answer!r}: tell a {names}")
        self._broker.tell(self._questions, answers)
        self._next()

    def _next(self) -> None:
        self._questions = next(self._batches, [])
        self._wanted = [each for question in self._questions for each in question.wanted]

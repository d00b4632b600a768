"""Ask/tell: what a search needs next, as data, and the answers to it.

The search does nothing but choose. Whoever drives it asks what the trees need, finds the answers in any way, and tells
them:

    search = ask_tell(SearchConfig(Limits(simulations=64)), states, seeds)
    while wanted := search.ask():
        search.tell([answer(each) for each in wanted])

``Searcher.run`` is such a loop, over a ``Policy``, a ``Dynamics``, a ``Value`` and a ``Critic``. It need not answer all
trees at once.
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
    """Actions to take in ``state``. The answer is a ``Proposal``."""

    state: State
    count: int
    """How many to sample, duplicates included."""
    seed: int
    """A seed to sample by. If the actions depend on it and on the state alone, equal seeds give equal trees."""


@dataclass(frozen=True, slots=True)
class WantStep:
    """What ``action`` leads to in ``state``. The answer is a ``Transition``, or the exception that the step raised: its
    tree then ends, and keeps the reason in ``Tree.error``."""

    state: State
    action: Action


@dataclass(frozen=True, slots=True)
class WantValue:
    """V(s) of ``state``. The answer is an ``Estimate``."""

    state: State


@dataclass(frozen=True, slots=True)
class WantScores:
    """A critic's score of each of ``actions`` in ``state``, in reward units. The answer is a sequence of floats."""

    state: State
    actions: Sequence[Action]


Wanted = WantActions | WantStep | WantValue | WantScores
Answer = Proposal | Transition | Exception | Estimate | Sequence[float]
Result = TypeVar("Result")
Conversation = Generator[Sequence[Wanted], Sequence[Answer], Result]
"""How one tree grows: it yields what it wants, one thing or several of one kind, and is sent the answers, one each and
in order."""
OnBatch = Callable[[Sequence[Tree]], None]
"""A function that is called after every batch with all trees as they are then."""

KINDS: tuple[type[Wanted], ...] = (WantActions, WantScores, WantStep, WantValue)
"""In the order in which a simulation wants them. A batch asks for each kind once."""
_ANSWERS: dict[type[Wanted], tuple[type, ...]] = {
    WantActions: (Proposal,),
    WantScores: (Sequence,),
    WantStep: (Transition, Exception),
    WantValue: (Estimate,),
}


@dataclass(slots=True, eq=False)
class Question:
    """What a tree wants now. It waits until all of it is answered."""

    place: int
    """The tree's place among the trees."""
    growth: Growth
    conversation: Conversation[None]
    wanted: Sequence[Wanted] = ()
    """All of one kind; empty once the search of the tree is over."""


class Broker:
    """Where the questions of many trees meet, by kind.

    Each tree has one question at a time, and goes on when that is answered, whatever the others wait for. So the trees
    do not depend on when and together with which others a question is answered.

    Args:
        conversations: one a tree.
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
        self.tell(self._growing, ())  # which begins their conversations
        self._growing = [question for question in self._growing if question.wanted]

    @property
    def trees(self) -> list[Tree]:
        """The trees as they are now, one a task, in the tasks' order."""
        return [growth.tree for growth in self._growths]

    @property
    def growing(self) -> int:
        """How many trees were not over when the last batch closed."""
        return len(self._growing)

    def waits(self, *kinds: type[Wanted]) -> bool:
        """Whether a question of one of these kinds was not taken yet."""
        return any(self._waiting[kind] for kind in kinds)

    def take(self, kind: type[Wanted]) -> list[Question]:
        """The questions of a kind that were not taken yet, in the order of the trees."""
        if not (questions := self._waiting[kind]):
            return []
        self._waiting[kind] = []
        questions.sort(key=attrgetter("place"))
        return questions

    def tell(self, questions: Sequence[Question], answers: Sequence[Answer]) -> None:
        """Answer questions: all answers to the first one, then those to the next."""
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
        """The questions of one kind after the other, each batch to be answered before the next is asked for."""
        while self.waits(*KINDS):
            for kind in KINDS:
                if questions := self.take(kind):
                    yield questions
            self.close_batch()


class AskTell:
    """Trees that grow as their questions are answered. Made by ``treeagent.search.ask_tell``."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._batches = broker.batches()
        self._next()

    @property
    def trees(self) -> list[Tree]:
        """The trees as they are now, one a task, in the tasks' order."""
        return self._broker.trees

    def ask(self) -> Sequence[Wanted]:
        """What the trees need next, all of one kind, in one batch; empty once every search is over."""
        return self._wanted

    def tell(self, answers: Sequence[Answer]) -> None:
        """Answer what ``ask`` gave, one answer each and in order, and let the searches go on.

        Raises:
            UserError: an answer is missing or of the wrong type.
            ValueError: a number in an answer is NaN or infinite, or an action has not one log-probability a token. The
                searches cannot go on after it.
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

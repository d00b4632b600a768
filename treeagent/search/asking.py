"""Ask/tell: what a search needs next, as data, and the answers to it.

The search does nothing but choose. Whoever drives it asks what the trees need, finds the answers in any way, and tells
them:

    search = ask_tell(SearchConfig(Limits(simulations=64)), states, seeds)
    while wanted := search.ask():
        search.tell([answer(each) for each in wanted])

``Searcher.run`` is such a loop, over a ``Policy``, a ``Dynamics``, a ``Value`` and a ``Critic``.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from treeagent.search.growth import Growth
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
Conversation = Generator[Sequence[Wanted], Sequence[Answer], None]
"""Yields what trees need together, all of one kind, and is sent the answers, one each and in order."""

_ANSWERS: dict[type[Wanted], tuple[type, ...]] = {
    WantActions: (Proposal,),
    WantStep: (Transition, Exception),
    WantValue: (Estimate,),
    WantScores: (Sequence,),
}


class AskTell:
    """Trees that grow as their questions are answered. Made by ``treeagent.search.ask_tell``."""

    def __init__(self, growths: Sequence[Growth], conversation: Conversation) -> None:
        self._growths = growths
        self._conversation = conversation
        self._wanted: Sequence[Wanted] = next(conversation, ())

    @property
    def trees(self) -> list[Tree]:
        """The trees as they are now, one a task, in the tasks' order."""
        return [growth.tree for growth in self._growths]

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
        try:
            self._wanted = self._conversation.send(answers)
        except StopIteration:
            self._wanted = ()

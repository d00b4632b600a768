"""AI feedback: a language model that ranks the candidates of a state against each other (Agent Q, section 5.1.1).

Nothing is sampled. The candidates are listed under letters at the end of the state's conversation, the answer is the
likeliest of these letters, and the next question goes on in the same conversation, so that nothing is read twice.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from string import ascii_uppercase as LETTERS
from typing import Literal, Protocol

from torch import Tensor

from treeagent.generators.chat import ChatFormat
from treeagent.types import Action, Message, State, UserError, derive_seed

QUESTION = """

These are the candidates for the next turn:
{candidates}
Which of them brings the task closest to success? Answer with its letter alone."""

CANDIDATE = """
{letter}.
{text}
"""

AGAIN = "Leave {letter} out. Which of the others does? Answer with its letter alone."


class NextTokenScorer(Protocol):
    """What the critic asks of a generator."""

    def next_logprobs(self, prompts: Sequence[tuple[int, ...]], token_ids: Sequence[int]) -> Tensor:
        """Log-probability, in nats, of each of the tokens right after each prompt, [prompts, tokens]."""
        ...

    def refusal(self, prompt: tuple[int, ...]) -> str:
        """Why the prompt cannot be read, in one sentence; empty where it can."""
        ...


@dataclass(frozen=True, slots=True)
class LMCritic:
    """Ranks candidates by asking a language model for the best, leaving it out and asking again.

    Scores depend neither on the order in which candidates come nor on what else is asked about. Candidates of equal
    text count as one. Where the questions outgrow the model's context, the candidates left share the mean of the scores
    left.
    """

    generator: NextTokenScorer
    chat: ChatFormat
    mode: Literal["ranking", "scores"] = "ranking"
    """A candidate's place in the ranking, mapped linearly to [0, 1] (the paper tells no map), or, of the first question
    alone, its letter's probability among the letters."""
    both_orders: bool = True
    """List the candidates in a seeded order and in its reverse, and average: models like some places of a list."""
    score_range: tuple[float, float] = (0.0, 1.0)
    """What 0 and 1 are in reward units."""
    _letter_ids: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.score_range[0] < self.score_range[1]:
            raise UserError(f"the critic's score range {self.score_range} is empty: give its least value first")
        letter_ids = tuple(self.chat.encode(letter)[0] for letter in LETTERS)
        if len(set(letter_ids)) < len(LETTERS):
            raise UserError(
                f"the tokenizer {self.chat.tokenizer.name_or_path!r} begins two letters with the same token, so that "
                "answers cannot be told apart: give the critic a model with another tokenizer"
            )
        object.__setattr__(self, "_letter_ids", letter_ids)

    async def rank(self, states: Sequence[State], candidates: Sequence[Sequence[Action]]) -> Sequence[Sequence[float]]:
        """A score of each candidate of each state, within ``score_range``.

        Raises:
            UserError: a state has more candidates than there are letters.
        """
        turns = [[_turn(state, action) for action in drawn] for state, drawn in zip(states, candidates, strict=True)]
        ballots = [self._ballots(state, texts) for state, texts in zip(states, turns, strict=True)]
        if self.both_orders:
            self._read_shared(ballots)
        waiting = [ballot for of_state in ballots for ballot in of_state]
        while waiting := [ballot for ballot in waiting if self._goes_on(ballot)]:
            self._ask(waiting)
        return [self._average(of_state, texts) for of_state, texts in zip(ballots, turns, strict=True)]

    def _ballots(self, state: State, texts: Sequence[str]) -> list["_Ballot"]:
        """One for each order of the distinct texts; the orders follow from the task and the texts alone."""
        told = self.chat.read(state.messages).messages
        order = sorted(set(texts))
        if len(order) > len(LETTERS):
            raise UserError(
                f"a state of task {state.task.id!r} has {len(order)} candidates, but the critic has {len(LETTERS)} "
                "letters for them: draw fewer"
            )
        said = (message.content for message in state.messages)
        random.Random(derive_seed("critic", state.task.id, state.task.seed, *said, *order)).shuffle(order)
        even = 1 / len(order) if self.mode == "scores" else 0.5
        orders = [order, order[::-1]] if self.both_orders else [order]
        return [
            _Ballot(each, _question(told, each), dict.fromkeys(each, even), list(range(len(each)))) for each in orders
        ]

    def _read_shared(self, ballots: Sequence[Sequence["_Ballot"]]) -> None:
        """Let the generator read what both orders of a state begin with, so that it finds it known in each."""
        asked = [of_state for of_state in ballots if all(map(self._goes_on, of_state))]
        if asked:
            prompts = [[self._prompt(ballot) for ballot in of_state] for of_state in asked]
            self.generator.next_logprobs([_shared(*both) for both in prompts], ())

    def _goes_on(self, ballot: "_Ballot") -> bool:
        return len(ballot.left) > 1 and not self.generator.refusal(self._prompt(ballot))

    def _prompt(self, ballot: "_Ballot") -> tuple[int, ...]:
        return self.chat.prompt_ids(ballot.messages)

    def _ask(self, ballots: Sequence["_Ballot"]) -> None:
        logprobs = self.generator.next_logprobs([self._prompt(ballot) for ballot in ballots], self._letter_ids)
        for ballot, row in zip(ballots, logprobs, strict=True):
            answers = row[ballot.left]
            if self.mode == "scores":
                ballot.settle(answers.softmax(-1).tolist())
            else:
                best = ballot.left[int(answers.argmax())]
                ballot.choose(best, self.chat.encode_action(LETTERS[best]))

    def _average(self, ballots: Sequence["_Ballot"], texts: Sequence[str]) -> list[float]:
        low, high = self.score_range
        means = {text: sum(ballot.scores[text] for ballot in ballots) / len(ballots) for text in texts}
        return [low + (high - low) * means[text] for text in texts]


@dataclass(slots=True)
class _Ballot:
    """One order of a state's candidates, as far as the model has been asked."""

    texts: Sequence[str]
    """Under the letters, in their order."""
    messages: tuple[Message, ...]
    scores: dict[str, float]
    """In [0, 1]; of a candidate that is left, the mean of those left."""
    left: list[int]
    """Places of the candidates yet to be compared."""

    def choose(self, place: int, answer_ids: tuple[int, ...]) -> None:
        """Record the best of the remaining candidates and leave it out of the next question."""
        worse = len(self.left) - 1
        self.left.remove(place)
        self.scores[self.texts[place]] = worse / (len(self.texts) - 1)
        for other in self.left:
            self.scores[self.texts[other]] = (worse - 1) / 2 / (len(self.texts) - 1)
        letter = LETTERS[place]
        self.messages += (Message("assistant", letter, answer_ids), Message("user", AGAIN.format(letter=letter)))

    def settle(self, scores: Sequence[float]) -> None:
        """Ask for scores of all candidates in one prompt."""
        self.scores, self.left = dict(zip(self.texts, scores, strict=True)), []


def _turn(state: State, action: Action) -> str:
    """The whole turn that an action makes, with what of it the state holds already."""
    last = state.messages[-1]
    return last.content + action.text if last.partial else action.text


def _question(told: Sequence[Message], texts: Sequence[str]) -> tuple[Message, ...]:
    """The conversation, the question at the end of what the agent has read last."""
    *before, last = [message for message in told if not message.partial]
    listing = "".join(CANDIDATE.format(letter=letter, text=text) for letter, text in zip(LETTERS, texts, strict=False))
    return (*before, Message(last.role, last.content + QUESTION.format(candidates=listing)))


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """What both begin with."""
    return tuple(token for token, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))

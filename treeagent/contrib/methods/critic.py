"""AI feedback: a language model that ranks the candidates of a state against each other (Agent Q, section 5.1.1).

Nothing is sampled. The candidates are listed under letters at the end of the state's conversation, and the answer is
the likeliest of these letters as the next token. If the chat template opens a thought, it is closed first. The next
question continues the same conversation, so nothing is read twice.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from string import ascii_uppercase as LETTERS

from treeagent.generators.base import Failure, Generator, common_prefix
from treeagent.generators.chat import ChatFormat
from treeagent.types import Action, Message, State, derive_seed

QUESTION = """

These are the candidates for the next turn:
{candidates}
Which of them brings the task closest to success? Answer with its letter alone."""

CANDIDATE = """
{letter}.
{text}
"""

NEXT_QUESTION = "Leave {letter} out. Which of the others does? Answer with its letter alone."


@dataclass(frozen=True, slots=True)
class LMCritic:
    """Ranks candidates: asks a language model for the best one, leaves it out and asks again.

    The score of a candidate is its rank, mapped linearly to [0, 1]: the best has 1, the worst 0 (the paper does not
    give a mapping). Models prefer some positions of a list, so the candidates are listed in a seeded order and in its
    reverse, and the two scores are averaged. Scores depend neither on the order of the given candidates nor on the
    other states of the batch. Candidates with equal text count as one. If a question is longer than the model's
    context, or its request fails, all remaining candidates get the mean of the remaining scores. If a state has more
    candidates than there are letters, all of its candidates get the mean, 1/2.
    """

    generator: Generator
    chat: ChatFormat

    async def rank(self, states: Sequence[State], candidates: Sequence[Sequence[Action]]) -> Sequence[Sequence[float]]:
        """Score each candidate of each state in [0, 1]."""
        turns = [
            [_turn(state, action) for action in actions] for state, actions in zip(states, candidates, strict=True)
        ]
        rankings = [self._rankings(state, texts) for state, texts in zip(states, turns, strict=True)]
        await self._read_shared(rankings)
        unfinished = [ranking for both in rankings for ranking in both]
        while unfinished := [ranking for ranking in unfinished if self._is_unfinished(ranking)]:
            await self._ask(unfinished)
        return [
            [(one.scores[text] + other.scores[text]) / 2 for text in texts]
            for (one, other), texts in zip(rankings, turns, strict=True)
        ]

    def _rankings(self, state: State, texts: Sequence[str]) -> tuple["_Ranking", "_Ranking"]:
        """The rankings of a state: its distinct texts in a seeded order and in the reverse order. The seed depends only
        on the task, the conversation and the texts."""
        order = sorted(set(texts))
        contents = (message.content for message in state.messages)
        random.Random(derive_seed("critic", state.task.id, state.task.seed, *contents, *order)).shuffle(order)
        messages_read = self.chat.read(state.messages).messages
        return _Ranking.of(state.task.id, messages_read, order), _Ranking.of(state.task.id, messages_read, order[::-1])

    async def _read_shared(self, rankings: Sequence[tuple["_Ranking", "_Ranking"]]) -> None:
        """Make the generator read the common prefix of both rankings of each state, so that its cache holds it for
        both."""
        unfinished = [both for both in rankings if all(map(self._is_unfinished, both))]
        if unfinished:
            shared = [common_prefix([self._prompt(one), self._prompt(other)]) for one, other in unfinished]
            trees = [one.tree for one, _ in unfinished]
            nothing = [()] * len(shared)
            await self.generator.in_background(partial(self.generator.score, shared, nothing, trees=trees))

    def _is_unfinished(self, ranking: "_Ranking") -> bool:
        answerable = not ranking.failed and len(ranking.texts) <= len(LETTERS)
        return answerable and len(ranking.left) > 1 and not self.generator.refusal(self._prompt(ranking))

    def _prompt(self, ranking: "_Ranking") -> tuple[int, ...]:
        return self.chat.prompt_ids(ranking.messages) + self.chat.closing

    async def _ask(self, rankings: Sequence["_Ranking"]) -> None:
        letters = [self.chat.encode(letter)[:1] for letter in LETTERS]
        prompts, trees = [self._prompt(ranking) for ranking in rankings], [ranking.tree for ranking in rankings]
        answers = [[letters[index] for index in ranking.left] for ranking in rankings]
        scored = await self.generator.in_background(partial(self.generator.score, prompts, answers, trees=trees))
        for ranking, samples in zip(rankings, scored, strict=True):
            if isinstance(samples, Failure):
                ranking.failed = True
                continue
            logprobs = [sample.logprobs[0] for sample in samples]
            best = ranking.left[logprobs.index(max(logprobs))]
            ranking.choose(best, self.chat.encode_action(LETTERS[best]))


@dataclass(slots=True)
class _Ranking:
    """The ranking of a state's candidates in one order, so far."""

    tree: str
    """As for ``SampleRequest.trees``."""
    texts: Sequence[str]
    """The candidates in the order of their letters."""
    messages: tuple[Message, ...]
    """The conversation with the questions and answers so far."""
    scores: dict[str, float]
    """Scores in [0, 1] by text. The candidates in ``left`` all have the mean of the remaining scores."""
    left: list[int]
    """Indices in ``texts`` of the candidates that are not ranked yet."""
    failed: bool = False
    """Whether a request failed, so that nothing more is asked."""

    @classmethod
    def of(cls, tree: str, messages_read: Sequence[Message], texts: Sequence[str]) -> "_Ranking":
        """A new ranking, with the first question appended to the last message that the agent has read."""
        *before, last = [message for message in messages_read if not message.partial]
        listing = "".join(CANDIDATE.format(letter=each, text=text) for each, text in zip(LETTERS, texts, strict=False))
        question = Message(last.role, last.content + QUESTION.format(candidates=listing))
        return cls(tree, texts, (*before, question), dict.fromkeys(texts, 0.5), list(range(len(texts))))

    def choose(self, index: int, answer_ids: tuple[int, ...]) -> None:
        """Record the best of the remaining candidates and leave it out of the next question."""
        worse = len(self.left) - 1
        self.left.remove(index)
        self.scores[self.texts[index]] = worse / (len(self.texts) - 1)
        for other in self.left:
            self.scores[self.texts[other]] = (worse - 1) / 2 / (len(self.texts) - 1)
        letter = LETTERS[index]
        self.messages += (
            Message("assistant", letter, answer_ids),
            Message("user", NEXT_QUESTION.format(letter=letter)),
        )


def _turn(state: State, action: Action) -> str:
    """The text of the whole turn of an action, including the part that the state already holds."""
    last = state.messages[-1]
    return last.content + action.text if last.partial else action.text

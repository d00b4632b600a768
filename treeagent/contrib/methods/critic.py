"""AI feedback: a language model that ranks the candidates of a state against each other (Agent Q, section 5.1.1). They
are listed under letters at the end of the conversation, and the answer is the likeliest letter as the next token."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from string import ascii_uppercase as LETTERS
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as options_dataclass

from treeagent.generators.base import Failure, Generator, common_prefix
from treeagent.generators.chat import ChatFormat
from treeagent.search.mcts import MctsOptions, Search
from treeagent.search.node import Node
from treeagent.search.searcher import Growth
from treeagent.types import Action, Message, State, UserError, derive_seed

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

    The score of a candidate is its rank, mapped linearly to [0, 1]: the best has 1, the worst 0. Models prefer some
    positions of a list, so the candidates are listed in a seeded order and in its reverse, and the two scores are
    averaged. Candidates with equal text count as one. If a question cannot be read or its request fails, the remaining
    candidates get the mean of the remaining scores; so do more candidates than there are letters.
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
        """The rankings of a state: its distinct texts in a seeded order and in the reverse order."""
        order = sorted(set(texts))
        contents = (message.content for message in state.messages)
        random.Random(derive_seed("critic", state.task.id, state.task.seed, *contents, *order)).shuffle(order)
        messages_read = self.chat.read(state.messages).messages
        return _Ranking.of(state.task.id, messages_read, order), _Ranking.of(state.task.id, messages_read, order[::-1])

    async def _read_shared(self, rankings: Sequence[tuple["_Ranking", "_Ranking"]]) -> None:
        """Make the generator's cache hold the common prefix of both rankings of each state."""
        unfinished = [both for both in rankings if all(map(self._is_unfinished, both))]
        if unfinished:
            shared = [common_prefix([self._prompt(one), self._prompt(other)]) for one, other in unfinished]
            nothing = [()] * len(shared)
            await self.generator.in_background(partial(self.generator.score, shared, nothing))

    def _is_unfinished(self, ranking: "_Ranking") -> bool:
        answerable = not ranking.failed and len(ranking.texts) <= len(LETTERS)
        return answerable and len(ranking.left) > 1 and not self.generator.refusal(self._prompt(ranking))

    def _prompt(self, ranking: "_Ranking") -> tuple[int, ...]:
        return self.chat.prompt_ids(ranking.messages) + self.chat.closing

    async def _ask(self, rankings: Sequence["_Ranking"]) -> None:
        letters = [self.chat.encode(letter)[:1] for letter in LETTERS]
        prompts = [self._prompt(ranking) for ranking in rankings]
        answers = [[letters[index] for index in ranking.left] for ranking in rankings]
        scored = await self.generator.in_background(partial(self.generator.score, prompts, answers))
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


@options_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class CriticOptions(MctsOptions):
    """Settings of the search with a critic."""

    weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the critic's word in the prior of an action."""


class CriticSearch(Search):
    """Monte Carlo tree search by PUCT in which the policy's own model, as critic, reweighs the priors of a state's
    candidates: P'(s,a) = (1 - w) P(s,a) + w c(s,a) / Σ_b c(s,b), with the critic's scores c.

    Agent Q mixes the score into Q instead (equation 10), where it never fades. In the prior it guides the first visits,
    and the returns outweigh it as they come in. The critic compares candidates, so a state gets ``search.candidates``
    of them at once, whatever its option ``widening`` is.
    """

    Options = CriticOptions
    options: CriticOptions

    async def sample(
        self, growth: Growth, nodes: Sequence[Node], counts: Sequence[int] = (), *, may_widen: bool = False
    ) -> None:
        await super().sample(growth, nodes)
        several = [node for node in nodes if len(node.edges) > 1]
        if not several or not self.options.weight:
            return
        asked = [(node.state, [edge.action for edge in node.edges]) for node in several]
        for node, scores in zip(several, await self.rank_actions(asked), strict=True):
            total, weight = sum(scores) or 1.0, self.options.weight
            for edge, score in zip(node.edges, scores, strict=True):
                edge.prior = (1 - weight) * edge.prior + weight * score / total

    async def rank_actions(self, asked: Sequence[tuple[State, Sequence[Action]]]) -> Sequence[Sequence[float]]:
        """The critic's scores of the candidates of each state. Each tree asks by itself.

        Raises:
            UserError: the policy does not generate tokens, so that its model cannot be asked.
        """
        generator, chat = getattr(self.policy, "generator", None), getattr(self.policy, "chat", None)
        if generator is None or not isinstance(chat, ChatFormat):
            raise UserError(
                "search.method 'critic' asks the policy's own model, but this policy has none that reads tokens: use a "
                "policy on token ids, with search.granularity=step"
            )
        return await LMCritic(generator, chat).rank([state for state, _ in asked], [actions for _, actions in asked])

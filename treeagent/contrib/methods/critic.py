"""AI feedback: a language model that ranks the candidates of a state against each other (Agent Q, section 5.1.1). They
are listed under letters at the end of the conversation, and the answer is the likeliest letter as the next token."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from string import ascii_uppercase as LETTERS
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as options_dataclass

from treeagent.generators.base import Failure, Generator
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
        turns = [[_turn(state, each) for each in actions] for state, actions in zip(states, candidates, strict=True)]
        rankings = [self._rankings(state, texts) for state, texts in zip(states, turns, strict=True)]
        while unfinished := [each for both in rankings for each in both if self._is_unfinished(each)]:
            await self._ask(unfinished)
        return [
            [fmean(ranking.score(text) for ranking in both) for text in texts]
            for both, texts in zip(rankings, turns, strict=True)
        ]

    def _rankings(self, state: State, texts: Sequence[str]) -> Sequence["_Ranking"]:
        """The rankings of a state, each with its first question: the distinct texts in a seeded order and in the
        reverse order."""
        order = sorted(set(texts))
        contents = (message.content for message in state.messages)
        random.Random(derive_seed("critic", state.task.id, state.task.seed, *contents, *order)).shuffle(order)
        *before, last = [message for message in self.chat.read(state.messages).messages if not message.partial]
        rankings = list[_Ranking]()
        for listed in (order, order[::-1]):
            letters = zip(LETTERS, listed, strict=False)
            listing = "".join(CANDIDATE.format(letter=letter, text=text) for letter, text in letters)
            question = Message(last.role, last.content + QUESTION.format(candidates=listing))
            rankings.append(_Ranking(listed, (*before, question), list(range(len(listed)))))
        return rankings

    def _is_unfinished(self, ranking: "_Ranking") -> bool:
        answerable = not ranking.failed and len(ranking.texts) <= len(LETTERS)
        return answerable and len(ranking.left) > 1 and not self.generator.refusal(self._prompt(ranking))

    def _prompt(self, ranking: "_Ranking") -> tuple[int, ...]:
        return self.chat.prompt_ids(ranking.messages) + self.chat.closing

    async def _ask(self, rankings: Sequence["_Ranking"]) -> None:
        """Ask for the best of the candidates that are left, and leave it out of the next question."""
        prompts = [self._prompt(ranking) for ranking in rankings]
        answers = [[self.chat.encode(LETTERS[index])[:1] for index in ranking.left] for ranking in rankings]
        scored = await self.generator.in_background(partial(self.generator.score, prompts, answers))
        for ranking, samples in zip(rankings, scored, strict=True):
            if isinstance(samples, Failure):
                ranking.failed = True
                continue
            logprobs = [sample.logprobs[0] for sample in samples]
            letter = LETTERS[ranking.left.pop(logprobs.index(max(logprobs)))]
            ranking.ranked.append(ranking.texts[LETTERS.index(letter)])
            answer = Message("assistant", letter, self.chat.encode_action(letter))
            ranking.messages += (answer, Message("user", NEXT_QUESTION.format(letter=letter)))


@dataclass(slots=True)
class _Ranking:
    """The ranking of a state's candidates in one order, so far."""

    texts: Sequence[str]
    """The candidates in the order of their letters."""
    messages: tuple[Message, ...]
    """The conversation with the questions and answers so far."""
    left: list[int]
    """Indices in ``texts`` of the candidates that are not ranked yet."""
    ranked: list[str] = field(default_factory=list[str])
    """The others, the best first."""
    failed: bool = False
    """Whether a request failed, so that nothing more is asked."""

    def score(self, text: str) -> float:
        """The rank of a candidate, from 1 for the best to 0; the mean of the ranks that are left if it has none."""
        worst = len(self.texts) - 1
        if text in self.ranked:
            return 1 - self.ranked.index(text) / worst
        return (len(self.left) - 1) / 2 / worst if worst else 0.5


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
        scored = await self.rank_actions(growth, several)
        for node, scores in zip(several, scored, strict=True):
            total, weight = sum(scores) or 1.0, self.options.weight
            for edge, score in zip(node.edges, scores, strict=True):
                edge.prior = (1 - weight) * edge.prior + weight * score / total

    async def rank_actions(self, growth: Growth, nodes: Sequence[Node]) -> Sequence[Sequence[float]]:
        """The critic's score of each edge of each node, at least 0."""
        generator, chat = getattr(self.policy, "generator", None), getattr(self.policy, "chat", None)
        if generator is None or not isinstance(chat, ChatFormat):
            raise UserError(
                "search.method 'critic' asks the policy's own model, but this policy has none that reads tokens: use a "
                "policy on token ids, with search.granularity=step"
            )
        candidates = [[edge.action for edge in node.edges] for node in nodes]
        return await LMCritic(generator, chat).rank([node.state for node in nodes], candidates)

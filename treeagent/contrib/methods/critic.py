"""AI feedback: a language model judges the candidates of a state against each other (after Agent Q, section 5.1.1). They
are listed under letters at the end of the conversation, and a candidate's score is the probability of its letter as the
next token. Agent Q asks for the best of those that are left again and again, which takes a request for each rank."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class LMCritic:
    """Scores candidates by one question: c(s,a) is the probability of the letter of a among the letters listed.

    Models prefer some positions of a list, so the candidates are listed in a seeded order and in its reverse, and the
    two scores are averaged. Candidates with equal text count as one, and have its score. Where a request fails, the
    prompt is too long or there are more candidates than letters, all have equal scores.
    """

    generator: Generator
    chat: ChatFormat

    async def scores(
        self, states: Sequence[State], candidates: Sequence[Sequence[Action]]
    ) -> Sequence[Sequence[float]]:
        """Score each candidate of each state in [0, 1]."""
        turns = [[_turn(state, each) for each in actions] for state, actions in zip(states, candidates, strict=True)]
        listed = [self._orders(state, texts) for state, texts in zip(states, turns, strict=True)]
        asked = [(state, order) for state, orders in zip(states, listed, strict=True) for order in orders]
        prompts = [self._prompt(state, order) for state, order in asked]
        letters = [[self.chat.encode(letter)[:1] for letter in LETTERS[: len(order)]] for _, order in asked]
        places = [
            place
            for place, (_, order) in enumerate(asked)
            if 1 < len(order) <= len(LETTERS) and not self.generator.refusal(prompts[place])
        ]
        score = partial(self.generator.score, [prompts[at] for at in places], [letters[at] for at in places])
        answers = dict(zip(places, await self.generator.in_background(score) if places else (), strict=True))
        found = list[dict[str, float]]()
        for place, (_, order) in enumerate(asked):
            answer = answers.get(place)
            if answer is None or isinstance(answer, Failure):
                found.append(dict.fromkeys(order, 1 / len(order)))
                continue
            chances = [math.exp(sample.logprobs[0]) for sample in answer]
            found.append({text: chance / sum(chances) for text, chance in zip(order, chances, strict=True)})
        pairs = zip(found[::2], found[1::2], strict=True)
        return [
            [fmean(each[text] for each in both) for text in texts] for both, texts in zip(pairs, turns, strict=True)
        ]

    def _orders(self, state: State, texts: Sequence[str]) -> tuple[list[str], list[str]]:
        """The distinct texts in a seeded order and in the reverse order."""
        order = sorted(set(texts))
        contents = (message.content for message in state.messages)
        random.Random(derive_seed("critic", state.task.id, state.task.seed, *contents, *order)).shuffle(order)
        return order, order[::-1]

    def _prompt(self, state: State, order: Sequence[str]) -> tuple[int, ...]:
        """The conversation, whose last message that the agent has read goes on with the question."""
        *before, last = [message for message in self.chat.read(state.messages).messages if not message.partial]
        letters = zip(LETTERS, order, strict=False)
        listing = "".join(CANDIDATE.format(letter=letter, text=text) for letter, text in letters)
        question = Message(last.role, last.content + QUESTION.format(candidates=listing))
        return self.chat.prompt_ids((*before, question)) + self.chat.closing


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
        generator, chat = getattr(self.policy, "generator", None), getattr(self.policy, "chat", None)
        if generator is None or not isinstance(chat, ChatFormat):
            raise UserError(
                "search.method 'critic' asks the policy's own model, but this policy has none that reads tokens: use a "
                "policy on token ids, with search.granularity=step"
            )
        candidates = [[edge.action for edge in node.edges] for node in several]
        ranked = await LMCritic(generator, chat).scores([node.state for node in several], candidates)
        for node, scores in zip(several, ranked, strict=True):
            total, weight = sum(scores) or 1.0, self.options.weight
            for edge, score in zip(node.edges, scores, strict=True):
                edge.prior = (1 - weight) * edge.prior + weight * score / total

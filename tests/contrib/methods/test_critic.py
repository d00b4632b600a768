"""The language model as critic: which question it gets, and how its answer scores the candidates."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp
from string import ascii_uppercase

import pytest
import torch
from torch import Tensor
from toy_llama import FirstLetter, plain_logprobs, sharpened
from transformers import PreTrainedModel

from treeagent.agent.policy import LLMPolicy
from treeagent.contrib.methods.critic import CANDIDATE, QUESTION, LMCritic
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import ScratchConfig
from treeagent.generators.local import LocalGenerator
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.search import Limits, SearchConfig, make_search
from treeagent.types import Action, Message, State, Task, Transition

CONFIG = ScratchConfig(vocabulary=512, layers=2, width=64, heads=2, context=512)
THINGS = [f"{colour} {thing}" for colour in ("red", "blue", "old", "new") for thing in ("lamp", "desk", "key")]


@lru_cache(maxsize=1)
def chat() -> ChatFormat:
    listings = [CANDIDATE.format(letter=letter, text=f"Action: take[gold {THINGS[0]}]") for letter in ascii_uppercase]
    texts = [QUESTION, *listings, *THINGS]
    return ChatFormat(train_tokenizer(texts, CONFIG))


@lru_cache(maxsize=1)
def model() -> PreTrainedModel:
    return sharpened(random_model(chat().tokenizer, CONFIG, 0))


def mark(role: str) -> int:
    """The id of the token that opens a role's turn."""
    return chat().tokenizer.get_vocab()[f"<|{role}|>"]


def state(number: int = 0, *, page: str = "a shop") -> State:
    return State(Task(f"task {number}", "buy it"), (Message("user", f"buy number {number} in {page}"),))


def takes(*things: str) -> list[Action]:
    return [Action(f"Action: take[{thing}]", f"take[{thing}]") for thing in things]


def rank(critic: LMCritic, *asked: tuple[State, Sequence[Action]]) -> list[list[float]]:
    told = asyncio.run(critic.scores([each for each, _ in asked], [actions for _, actions in asked]))
    return [list(scores) for scores in told]


def letters_of(prompt: tuple[int, ...]) -> dict[str, str]:
    """The candidate that a question lists under each letter."""
    return {text: letter for letter, text in re.findall(r"\n([A-Z])\.\n(.*)\n", chat().decode(prompt))}


def next_letters(prompt: tuple[int, ...], letters: Sequence[str]) -> Tensor:
    """log P of each letter by a plain forward pass."""
    return torch.cat([plain_logprobs(model(), prompt, chat().encode(letter)) for letter in letters])


def test_the_question_by_hand() -> None:
    """A scorer that prefers what is listed first, each letter by a factor of e to the next."""
    scorer = FirstLetter(model())
    before = (Message("user", "find a lamp"), Message("assistant", "look", chat().encode_action("look")))
    here = State(Task("by hand", "find a lamp"), (*before, Message("user", "two lamps <|end|>")))
    [scores] = rank(LMCritic(scorer, chat()), (here, takes("red {lamp}", "old lamp", "new lamp")))
    first, _ = (chat().decode((*prompt, chat().stop_id)) for prompt in scorer.asked)
    listed = sorted(letters_of(scorer.asked[0]), key=letters_of(scorer.asked[0]).__getitem__)
    assert sorted(listed) == ["Action: take[new lamp]", "Action: take[old lamp]", "Action: take[red {lamp}]"]
    assert first == (
        "<|user|>find a lamp<|end|><|assistant|>look<|end|><|user|>two lamps <|end|>\n\n"
        "These are the candidates for the next turn:\n"
        f"\nA.\n{listed[0]}\n\nB.\n{listed[1]}\n\nC.\n{listed[2]}\n\n"
        "Which of them brings the task closest to success? Answer with its letter alone.<|end|><|assistant|>"
    )
    spoken = scorer.asked[0].count(chat().stop_id)
    assert spoken == 3  # the page's own special token is plain text
    total = 1 + exp(-1) + exp(-2)  # what is first in one order is last in the other
    outer, middle = (1 + exp(-2)) / 2 / total, exp(-1) / total
    assert sorted(scores) == pytest.approx(sorted([outer, middle, outer]))


def test_scores_are_the_chances_of_the_letters_under_the_model() -> None:
    """Checked by plain forward passes over the same questions, in each order."""
    scorer = FirstLetter(model())
    actions = takes(*THINGS[:5])
    rank(LMCritic(scorer, chat()), (state(), actions))
    shares = []
    for prompt in scorer.asked:
        listed = letters_of(prompt)
        chances = next_letters(prompt, list(listed.values())).exp()
        shares.append(dict(zip(listed, (chances / chances.sum()).tolist(), strict=True)))
    [scores] = rank(LMCritic(LocalGenerator(model()), chat()), (state(), actions))
    assert scores == pytest.approx([sum(share[action.text] for share in shares) / 2 for action in actions], rel=1e-3)
    first, reverse = map(letters_of, scorer.asked)
    assert [first[action.text] for action in actions] != sorted("ABCDE")
    assert {first[text] + reverse[text] for text in first} == {"AE", "BD", "CC", "DB", "EA"}


@dataclass(frozen=True)
class Echo:
    """Answers with the action; an episode has three steps at most."""

    async def reset(self, task: Task) -> State:
        return State(task, (Message("user", task.prompt),))

    async def step(self, state: State, action: Action) -> Transition:
        said = Message("assistant", action.text, action.token_ids)
        seen = Message("user", f"{len(state.messages)} {action.text}")
        return Transition(State(state.task, (*state.messages, said, seen)), truncated=len(state.messages) == 5)


def test_the_policys_own_model_reweighs_the_priors() -> None:
    """With weight 1 the priors are the critic's scores alone, those of a model with an empty cache. The policy samples
    as if no question had been asked between."""
    policy = LLMPolicy(LocalGenerator(model()), chat(), max_new_tokens=6)
    config = SearchConfig(Limits(simulations=12), "critic", {"weight": 1.0}, candidates=3)
    [tree] = asyncio.run(make_search(policy, Echo(), config).run([state().task], [0]))
    expanded = [node for node in tree.nodes() if len(node.edges) > 1]
    assert len(expanded) > 2
    for node in expanded:
        [scores] = rank(LMCritic(LocalGenerator(model()), chat()), (node.state, [edge.action for edge in node.edges]))
        assert [edge.prior for edge in node.edges] == pytest.approx([each / sum(scores) for each in scores], rel=1e-3)
        for edge in node.edges:
            prompt = chat().prompt_ids(node.state.messages)
            expected = plain_logprobs(model(), prompt, edge.action.token_ids)
            assert edge.action.logprobs == pytest.approx(expected.tolist(), abs=1e-4)

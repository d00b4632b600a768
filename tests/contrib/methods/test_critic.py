"""The language model as critic: which questions it gets, how its answers score the candidates, and what that costs."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_uppercase

import pytest
import torch
from torch import Tensor
from toy_llama import FirstLetter, plain_logprobs, sharpened
from transformers import PreTrainedModel

from treeagent.agent.policy import LLMPolicy
from treeagent.contrib.methods.critic import CANDIDATE, NEXT_QUESTION, QUESTION, LMCritic
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
    texts = [QUESTION, *listings, *(NEXT_QUESTION.format(letter=letter) for letter in ascii_uppercase), *THINGS]
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
    told = asyncio.run(critic.rank([each for each, _ in asked], [actions for _, actions in asked]))
    return [list(scores) for scores in told]


def letters_of(prompt: tuple[int, ...]) -> dict[str, str]:
    """The candidate that a question lists under each letter."""
    return {text: letter for letter, text in re.findall(r"\n([A-Z])\.\n(.*)\n", chat().decode(prompt))}


def next_letters(prompt: tuple[int, ...], letters: Sequence[str]) -> Tensor:
    """log P of each letter by a plain forward pass."""
    return torch.cat([plain_logprobs(model(), prompt, chat().encode(letter)) for letter in letters])


def test_the_dialogue_by_hand() -> None:
    scorer = FirstLetter(model())
    before = (Message("user", "find a lamp"), Message("assistant", "look", chat().encode_action("look")))
    here = State(Task("by hand", "find a lamp"), (*before, Message("user", "two lamps <|end|>")))
    [scores] = rank(LMCritic(scorer, chat()), (here, takes("red {lamp}", "old lamp", "new lamp")))
    first, _, second, _ = (chat().decode((*prompt, chat().stop_id)) for prompt in scorer.asked)
    listed = sorted(letters_of(scorer.asked[0]), key=letters_of(scorer.asked[0]).__getitem__)
    assert sorted(listed) == ["Action: take[new lamp]", "Action: take[old lamp]", "Action: take[red {lamp}]"]
    assert first == (
        "<|user|>find a lamp<|end|><|assistant|>look<|end|><|user|>two lamps <|end|>\n\n"
        "These are the candidates for the next turn:\n"
        f"\nA.\n{listed[0]}\n\nB.\n{listed[1]}\n\nC.\n{listed[2]}\n\n"
        "Which of them brings the task closest to success? Answer with its letter alone.<|end|><|assistant|>"
    )
    assert second == (
        first + "A<|end|><|user|>Leave A out. Which of the others does? Answer with its letter alone."
        "<|end|><|assistant|>"
    )
    spoken = scorer.asked[0].count(chat().stop_id)
    assert spoken == 3  # the page's own special token is plain text
    assert scores == [0.5] * 3  # what is first in one order is last in the other


def test_ranking_is_repeated_best_of_under_the_model() -> None:
    """Checked by plain forward passes over the same dialogue: the likeliest of the letters that are left, in each
    order."""
    scorer = FirstLetter(model())
    actions = takes(*THINGS[:5])
    rank(LMCritic(scorer, chat()), (state(), actions))
    openings = scorer.asked[:2]
    shares = []
    for opening in openings:
        listed = {letter: text for text, letter in letters_of(opening).items()}
        prompt, ranked = opening, list[str]()
        while left := [letter for letter in listed if letter not in ranked]:
            best = left[int(next_letters(prompt, left).argmax())]
            ranked.append(best)
            again = chat().encode(NEXT_QUESTION.format(letter=best))
            prompt = (*prompt, *chat().encode_action(best), mark("user"), *again, chat().stop_id, mark("assistant"))
        shares.append({listed[letter]: 1 - place / 4 for place, letter in enumerate(ranked)})
    [scores] = rank(LMCritic(LocalGenerator(model()), chat()), (state(), actions))
    expected = [sum(share[action.text] for share in shares) / len(shares) for action in actions]
    assert scores == pytest.approx(expected)
    first, reverse = map(letters_of, openings)
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
        assert [edge.prior for edge in node.edges] == pytest.approx([each / sum(scores) for each in scores])
        for edge in node.edges:
            prompt = chat().prompt_ids(node.state.messages)
            expected = plain_logprobs(model(), prompt, edge.action.token_ids)
            assert edge.action.logprobs == pytest.approx(expected.tolist(), abs=1e-4)

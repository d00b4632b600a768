"""The language model as critic: what it is asked, what its answers make of the candidates, and what that costs."""

import asyncio
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from string import ascii_uppercase
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from torch import Tensor
from toy_llama import plain_logprobs, sharpened
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from treeagent.agent.critic import AGAIN, CANDIDATE, QUESTION, LMCritic
from treeagent.agent.policy import LLMPolicy
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import ScratchConfig
from treeagent.generators.local import LocalGenerator
from treeagent.generators.scratch import CHAT_TEMPLATE, random_model, train_tokenizer
from treeagent.search.config import SearchConfig
from treeagent.search.limits import Limits
from treeagent.search.mcts import Search
from treeagent.types import Action, Message, State, Task, Transition, UserError

Mode = Literal["ranking", "scores"]
CONFIG = ScratchConfig(vocabulary=512, layers=2, width=64, heads=2, context=512)
THINGS = [f"{colour} {thing}" for colour in ("red", "blue", "old", "new") for thing in ("lamp", "desk", "key")]


class Scorer(LocalGenerator):
    """A generator that is asked for next tokens."""

    @torch.no_grad()
    def next_logprobs(self, prompts: Sequence[tuple[int, ...]], token_ids: Sequence[int]) -> Tensor:
        logits = [segment.logits for segment in self._read(prompts)]
        self.cache.trim()
        return torch.stack([each for each in logits if each is not None]).log_softmax(-1)[:, list(token_ids)].cpu()


@dataclass
class FirstLetter:
    """Likes what is listed first, and keeps the prompts that it is asked about."""

    asked: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])

    def next_logprobs(self, prompts: Sequence[tuple[int, ...]], token_ids: Sequence[int]) -> Tensor:
        if token_ids:
            self.asked += prompts
        return -torch.arange(len(token_ids)).float().expand(len(prompts), -1)

    def refusal(self, prompt: tuple[int, ...]) -> str:
        return ""


@lru_cache(maxsize=1)
def chat() -> ChatFormat:
    listings = [CANDIDATE.format(letter=letter, text=f"Action: take[gold {THINGS[0]}]") for letter in ascii_uppercase]
    texts = [QUESTION, *listings, *(AGAIN.format(letter=letter) for letter in ascii_uppercase), *THINGS]
    return ChatFormat(train_tokenizer(texts, CONFIG))


@lru_cache(maxsize=1)
def model() -> PreTrainedModel:
    return sharpened(random_model(chat().tokenizer, CONFIG, 0))


def mark(role: str) -> int:
    """The id of the token with which a role's turn begins."""
    return chat().tokenizer.get_vocab()[f"<|{role}|>"]


def state(number: int = 0, *, page: str = "a shop") -> State:
    return State(Task(f"task {number}", "buy it"), (Message("user", f"buy number {number} in {page}"),))


def takes(*things: str) -> list[Action]:
    return [Action(f"Action: take[{thing}]", f"take[{thing}]") for thing in things]


def rank(critic: LMCritic, *asked: tuple[State, Sequence[Action]]) -> list[list[float]]:
    told = asyncio.run(critic.rank([each for each, _ in asked], [actions for _, actions in asked]))
    return [list(scores) for scores in told]


def letters_of(prompt: tuple[int, ...]) -> dict[str, str]:
    """What a question lists under each letter."""
    return {text: letter for letter, text in re.findall(r"\n([A-Z])\.\n(.*)\n", chat().decode(prompt))}


def next_letters(prompt: tuple[int, ...], letters: Sequence[str]) -> Tensor:
    """log P of each letter by a plain forward pass."""
    return torch.cat([plain_logprobs(model(), prompt, chat().encode(letter)) for letter in letters])


def test_the_dialogue_by_hand() -> None:
    scorer = FirstLetter()
    before = (Message("user", "find a lamp"), Message("assistant", "look", chat().encode_action("look")))
    here = State(Task("by hand", "find a lamp"), (*before, Message("user", "two lamps <|end|>")))
    [scores] = rank(LMCritic(scorer, chat(), both_orders=False), (here, takes("red {lamp}", "old lamp", "new lamp")))
    first, second = (chat().decode((*prompt, chat().stop_id)) for prompt in scorer.asked)
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
    assert spoken == 3  # the page's own mark is plain text
    assert {text: score for text, score in zip(["red {lamp}", "old lamp", "new lamp"], scores, strict=True)} == {
        listed[place][len("Action: take[") : -1]: 1 - place / 2 for place in range(3)
    }


@pytest.mark.parametrize("both_orders", [False, True])
def test_ranking_is_repeated_best_of_under_the_model(both_orders: bool) -> None:
    """The same dialogue by plain forward passes: the likeliest letter of those left, in each order."""
    scorer = FirstLetter()
    actions = takes(*THINGS[:5])
    rank(LMCritic(scorer, chat(), both_orders=both_orders), (state(), actions))
    openings = scorer.asked[: 1 + both_orders]
    shares = []
    for opening in openings:
        listed = {letter: text for text, letter in letters_of(opening).items()}
        prompt, ranked = opening, list[str]()
        while left := [letter for letter in listed if letter not in ranked]:
            best = left[int(next_letters(prompt, left).argmax())]
            ranked.append(best)
            again = chat().encode(AGAIN.format(letter=best))
            prompt = (*prompt, *chat().encode_action(best), mark("user"), *again, chat().stop_id, mark("assistant"))
        shares.append({listed[letter]: 1 - place / 4 for place, letter in enumerate(ranked)})
    [scores] = rank(LMCritic(Scorer(model()), chat(), both_orders=both_orders), (state(), actions))
    expected = [sum(share[action.text] for share in shares) / len(shares) for action in actions]
    assert scores == pytest.approx(expected)
    if both_orders:
        assert [letters_of(openings[0])[action.text] for action in actions] != sorted("ABCDE")
        assert {letters_of(openings[0])[text] + letters_of(openings[1])[text] for text in letters_of(openings[0])} == {
            "AE",
            "BD",
            "CC",
            "DB",
            "EA",
        }


def test_scores_are_the_letters_probabilities() -> None:
    scorer, actions = FirstLetter(), takes(*THINGS[:4])
    rank(LMCritic(scorer, chat(), mode="scores"), (state(), actions))
    assert len(scorer.asked) == 2
    one, other = ((letters_of(prompt), next_letters(prompt, "ABCD").softmax(-1)) for prompt in scorer.asked)
    expected = [
        sum(float(probabilities["ABCD".index(letters[action.text])]) / 2 for letters, probabilities in (one, other))
        for action in actions
    ]
    [scores] = rank(LMCritic(Scorer(model()), chat(), mode="scores"), (state(), actions))
    assert scores == pytest.approx(expected, abs=1e-5)
    assert sum(scores) == pytest.approx(1.0)
    assert max(scores) - min(scores) > 0.05


@settings(max_examples=20)
@given(
    st.lists(st.sampled_from(THINGS), min_size=1, max_size=6).flatmap(
        lambda things: st.tuples(st.just(things), st.permutations(range(len(things))))
    ),
    st.sampled_from(["ranking", "scores"]),
    st.booleans(),
)
def test_scores_go_with_the_candidates_not_with_their_places(
    drawn: tuple[list[str], list[int]], mode: Mode, both_orders: bool
) -> None:
    things, order = drawn
    critic = LMCritic(Scorer(model()), chat(), mode, both_orders, score_range=(-1.0, 3.0))
    [scores] = rank(critic, (state(), takes(*things)))
    [permuted] = rank(critic, (state(), takes(*(things[place] for place in order))))
    assert permuted == pytest.approx([scores[place] for place in order], abs=1e-4)
    assert all(-1.0 <= score <= 3.0 for score in scores)
    by_thing: dict[str, set[float]] = {}
    for thing, score in zip(things, scores, strict=True):
        by_thing.setdefault(thing, set()).add(score)
    assert all(len(told) == 1 for told in by_thing.values())
    if mode == "ranking" and not both_orders and len(by_thing) > 1:
        last = len(by_thing) - 1
        assert sorted(min(told) for told in by_thing.values()) == pytest.approx(
            [-1 + 4 * rank / last for rank in range(last + 1)]
        )


@pytest.mark.parametrize("mode", ["ranking", "scores"])
def test_a_state_is_ranked_the_same_alone_and_among_others(mode: Mode) -> None:
    asked = [(state(number), takes(*THINGS[number : number + 2 + number % 4])) for number in range(6)]
    together = rank(LMCritic(Scorer(model()), chat(), mode), *asked)
    critic = LMCritic(Scorer(model(), cache_bytes=0), chat(), mode)
    for each, scores in zip(asked, together, strict=True):
        [alone] = rank(critic, each)
        assert alone == pytest.approx(scores, abs=1e-4)
    assert len({tuple(scores) for scores in together}) > 3


def test_position_bias_cancels_in_both_orders() -> None:
    actions = takes(*THINGS[:4])
    [fair] = rank(LMCritic(FirstLetter(), chat()), (state(), actions))
    [unfair] = rank(LMCritic(FirstLetter(), chat(), both_orders=False), (state(), actions))
    assert fair == [0.5] * 4
    assert sorted(unfair) == pytest.approx([0, 1 / 3, 2 / 3, 1])
    places = [replace(state(), messages=state(number).messages) for number in range(9)]
    told = rank(LMCritic(FirstLetter(), chat(), both_orders=False), *((place, actions) for place in places))
    assert len(set(map(tuple, told))) > 4


def test_every_token_of_the_questions_is_read_once() -> None:
    """Of both orders the common beginning, and of each further question what it adds; no token is sampled."""
    recorder, actions = FirstLetter(), takes(*THINGS[:4])
    here = state(page="a shop " * 20)
    generator = Scorer(model())
    [scores] = rank(LMCritic(generator, chat()), (here, actions))
    rank(LMCritic(recorder, chat()), (here, actions))
    opening, other = recorder.asked[:2]
    shared = next(place for place, (one, two) in enumerate(zip(opening, other, strict=False)) if one != two)
    assert shared > 50
    again = [len(long) - len(short) for short, long in zip(recorder.asked, recorder.asked[2:], strict=False)]
    assert len(again) == 4  # two orders of four: three questions each
    assert generator.usage.encoded_tokens == len(opening) + len(other) - shared + sum(again)
    assert generator.usage.generated_tokens == 0
    before = replace(generator.usage)
    assert rank(LMCritic(generator, chat()), (here, actions)) == [scores]
    assert generator.usage.encoded_tokens == before.encoded_tokens


def test_a_turn_that_has_begun_is_shown_whole() -> None:
    scorer = FirstLetter()
    begun = Message("assistant", "Thought: it is dark\nAction:", chat().encode("Thought: it is dark\nAction:"), True)
    here = replace(state(), messages=(*state().messages, begun))
    rest = [Action(f" take[{thing}]", f"take[{thing}]") for thing in THINGS[:2]]
    rank(LMCritic(scorer, chat(), both_orders=False), (here, rest))
    [prompt] = scorer.asked
    text = chat().decode(prompt)
    for thing in THINGS[:2]:
        assert f".\nThought: it is dark\nAction: take[{thing}]\n" in text
    assert text.count("<|assistant|>") == 1
    assert text.startswith("<|user|>buy number 0 in a shop\n\nThese are the candidates")


def test_candidates_beyond_the_context_share_the_mean_score() -> None:
    """Too long at once, then after one question: the best has 1, and the others share the mean of 1/2 and 0."""
    critic, actions = LMCritic(Scorer(model()), chat()), takes(*THINGS[:3])
    long, fits = state(page="a shop " * 400), state()
    crowded, plain = rank(critic, (long, actions), (fits, actions))
    assert crowded == [0.5] * 3
    assert [plain] == rank(critic, (fits, actions))
    assert plain != [0.5] * 3
    assert rank(replace(critic, mode="scores"), (long, actions)) == [pytest.approx([1 / 3] * 3)]
    recorder = FirstLetter()
    rank(LMCritic(recorder, chat(), both_orders=False), (fits, actions))
    _, again = map(len, recorder.asked)
    assert len(chat().encode(" red" * 9)) == 9
    filled = state(page="a shop" + " red" * (CONFIG.context - again))
    [scores] = rank(LMCritic(Scorer(model()), chat(), both_orders=False), (filled, actions))
    assert sorted(scores) == [0.25, 0.25, 1.0]


def test_one_candidate_needs_no_question() -> None:
    scorer = FirstLetter()
    alone = takes("lamp")
    assert rank(LMCritic(scorer, chat()), (state(), alone), (state(1), takes("key", "key"))) == [[0.5], [0.5, 0.5]]
    assert rank(LMCritic(scorer, chat()), (state(), [])) == [[]]
    assert asyncio.run(LMCritic(scorer, chat()).rank([], [])) == []
    assert not scorer.asked


def test_more_candidates_than_letters_are_refused() -> None:
    critic = LMCritic(FirstLetter(), chat())
    many = takes(*(f"lamp {number}" for number in range(27)))
    with pytest.raises(UserError, match="27 candidates, but the critic has 26 letters"):
        rank(critic, (state(), many))
    [scores] = rank(replace(critic, both_orders=False), (state(), many[:26]))
    assert sorted(scores) == pytest.approx([place / 25 for place in range(26)])


def test_letters_that_begin_alike_are_refused() -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "A": 2}, unk_token="<unk>"))
    alike = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="</s>")
    alike.chat_template = CHAT_TEMPLATE
    with pytest.raises(UserError, match="begins two letters with the same token"):
        LMCritic(FirstLetter(), ChatFormat(alike))


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(UserError, match="score range"):
        LMCritic(FirstLetter(), chat(), score_range=(1.0, 1.0))


@dataclass(frozen=True)
class Echo:
    """Says the action back; three steps at most."""

    async def reset(self, task: Task) -> State:
        return State(task, (Message("user", task.prompt),))

    async def step(self, state: State, action: Action) -> Transition:
        said = Message("assistant", action.text, action.token_ids)
        seen = Message("user", f"{len(state.messages)} {action.text}")
        return Transition(State(state.task, (*state.messages, said, seen)), truncated=len(state.messages) == 5)


def test_the_policys_own_model_can_be_the_critic() -> None:
    """It judges as one that has read nothing before, and the policy draws as one that is not asked in between."""
    generator = Scorer(model())
    policy = LLMPolicy(generator, chat(), max_new_tokens=6)
    config = SearchConfig(limits=Limits(simulations=6), candidates=3, critic_weight=0.5)
    [tree] = asyncio.run(Search(policy, Echo(), config, None, LMCritic(generator, chat())).run([state().task], [0]))
    expanded = [node for node in tree.nodes() if len(node.edges) > 1]
    assert len(expanded) > 2
    for node in expanded:
        [scores] = rank(LMCritic(Scorer(model()), chat()), (node.state, [edge.action for edge in node.edges]))
        assert [edge.critic for edge in node.edges] == pytest.approx(scores)
        for edge in node.edges:
            prompt = chat().prompt_ids(node.state.messages)
            expected = plain_logprobs(model(), prompt, edge.action.token_ids)
            assert edge.action.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def golden(shuffler: random.Random, number: int) -> tuple[State, list[Action]]:
    """A few things to take, the first of them golden."""
    things = shuffler.sample(THINGS, shuffler.choice([2, 3, 4]))
    return state(number), takes(f"gold {things[0]}", *things[1:])


def test_a_model_that_was_taught_to_ranks_the_marked_candidate_first() -> None:
    """Taught to answer the first question with the letter of what is golden; asked about unseen listings."""
    torch.manual_seed(0)
    shuffler, pupil = random.Random(0), random_model(chat().tokenizer, CONFIG, 0)
    optimizer = torch.optim.AdamW(pupil.parameters(), lr=3e-3)
    for _ in range(60):
        scorer = FirstLetter()
        asked = [golden(shuffler, shuffler.randrange(1000)) for _ in range(16)]
        rank(LMCritic(scorer, chat(), "scores", both_orders=False), *asked)
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(prompt) for prompt in scorer.asked], batch_first=True)
        ends = torch.tensor([len(prompt) - 1 for prompt in scorer.asked])
        letters = [
            letters_of(prompt)[actions[0].text] for prompt, (_, actions) in zip(scorer.asked, asked, strict=True)
        ]
        answers = torch.tensor([chat().encode(letter)[0] for letter in letters])
        logits = pupil(input_ids=ids).logits[torch.arange(len(ids)), ends]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits, answers)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(pupil.parameters(), 1.0)
        optimizer.step()
    unseen = [golden(shuffler, 1000 + number) for number in range(40)]
    modes: tuple[Mode, ...] = ("ranking", "scores")
    for mode in modes:
        assert found(pupil, mode, unseen) >= 38
        assert found(model(), mode, unseen) < 30


def found(asked: PreTrainedModel, mode: Mode, listings: Sequence[tuple[State, list[Action]]]) -> int:
    """How often the first candidate has the best score, alone."""
    told = rank(LMCritic(Scorer(asked), chat(), mode), *listings)
    return sum(scores[0] > max(scores[1:]) for scores in told)

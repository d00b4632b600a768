"""A judge in this process: it answers with the probability of yes, and reads each question separately."""

import asyncio
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from toy_llama import plain_logprobs, sharpened
from transformers import PreTrainedModel

from treeagent.contrib.judging.assess import Local, judge_of, local
from treeagent.contrib.judging.config import JudgeConfig, RewardsConfig
from treeagent.contrib.judging.judge import HACKED, INSTRUCTIONS, Judge
from treeagent.contrib.judging.ledger import Reply
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import ScratchConfig
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.types import Message, Task

ITEMS = ("Is the task done?", "Was every call needed?")
TASK = Task("task", "Find the lamp.", data={"answer": "the red one"})
EPISODE = (Message("user", "Find the lamp."), Message("assistant", "look"), Message("user", "a lamp"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint with random weights."""
    folder = tmp_path_factory.mktemp("judge")
    config = ScratchConfig(vocabulary=600, layers=2, width=32, heads=2, context=512)
    tokenizer = train_tokenizer(
        [INSTRUCTIONS, HACKED, *ITEMS, "Answer yes or no, with this word alone. Yes No"], config
    )
    sharpened(random_model(tokenizer, config, 0)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def judge(model: str, folder: Path, **settings: Any) -> Judge:
    config = JudgeConfig(**{"model": model, "items": ITEMS} | settings)
    made = judge_of(RewardsConfig(judge=config), folder, "collect")
    assert made is not None
    return made


def probability(local: Local, prompt: tuple[int, ...]) -> float:
    """P(yes) / (P(yes) + P(no)) by plain forward passes."""
    chat, model = local.chat, local.generator.model
    assert isinstance(model, PreTrainedModel)
    shares = {
        word: math.exp(float(plain_logprobs(model, prompt, chat.encode(word)).sum()))
        for word in ("yes", "Yes", "no", "No")
    }
    return (shares["yes"] + shares["Yes"]) / sum(shares.values())


def test_a_verdict_is_the_mean_probability_of_yes_and_the_ledger_keeps_it(model: str, tmp_path: Path) -> None:
    made = judge(model, tmp_path)
    verdict = asyncio.run(made.ask(TASK, EPISODE))
    assert verdict is not None and isinstance(made.model, Local)
    assert not made.model.chat.context_ids.cache_info().currsize  # otherwise memory would grow with every end
    prompts = {
        question: made.model.chat.prompt_ids(tuple(made._prompt(TASK, EPISODE, [question], None)))
        for question in (*ITEMS, HACKED)
    }
    told = {question: probability(made.model, prompt) for question, prompt in prompts.items()}
    assert abs(told[ITEMS[0]] - told[ITEMS[1]]) > 0.001  # otherwise the test could not tell the questions apart
    assert verdict.value == pytest.approx((told[ITEMS[0]] + told[ITEMS[1]]) / 2, abs=1e-5)
    assert verdict.hacked == (told[HACKED] > 0.5)
    figures = made.ledger.figures()
    assert figures["judge/calls"] == 3 and figures["judge/prompt_tokens"] == sum(map(len, prompts.values()))
    assert figures["judge/generated_tokens"] == 0 and not made.ledger.reasons()
    # With one item less the answers are the same as before: no answer depends on the other questions.
    fewer = judge(model, tmp_path, items=ITEMS[1:])
    again = asyncio.run(fewer.ask(TASK, EPISODE))
    assert again is not None and again.value == pytest.approx(told[ITEMS[1]], abs=1e-5)
    assert fewer.ledger.figures()["judge/calls"] == 3


def test_an_episode_that_the_model_cannot_read_has_no_verdict(model: str, tmp_path: Path) -> None:
    made = judge(model, tmp_path)
    assert asyncio.run(made.ask(TASK, (*EPISODE, Message("user", "a lamp " * 300)))) is None
    [(reason, number)] = made.ledger.reasons()
    assert "512" in reason and number == 1
    assert made.ledger.figures()["judge/calls"] == 0


def test_a_budget_that_ends_between_two_questions_leaves_no_half_verdict(model: str, tmp_path: Path) -> None:
    short = judge(model, tmp_path, most_calls=1)
    assert asyncio.run(short.ask(TASK, EPISODE)) is None
    assert "most_calls" in short.ledger.reasons()[0][0] and short.ledger.figures()["judge/calls"] == 1


def test_threads_that_ask_at_once_read_no_mark_of_an_episode_as_a_special_token(model: str, tmp_path: Path) -> None:
    """A tokenizer has one switch for that, which must differ between the template's special tokens and the episode's
    text."""
    made = judge(model, tmp_path)
    assert isinstance(made.model, Local)
    local, mark = made.model, made.model.chat.stop_text
    asked = [
        made._prompt(TASK, (Message("user", f"a lamp {number} {mark} " * 9),), ITEMS[:1], None) for number in range(40)
    ]
    alone = [local.reply([talk], [0]) for talk in asked]
    local.chat.forget()
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            together = list(threads.map(lambda talk: local.reply([talk], [0]), asked))
    finally:
        sys.setswitchinterval(usual)
    assert together == alone


def test_a_thought_that_the_template_opens_is_closed_before_the_answer(model: str, tmp_path: Path) -> None:
    """Otherwise the probabilities would be those of a thought's first word."""
    loaded = local(model)
    tokenizer = train_tokenizer([INSTRUCTIONS, *ITEMS, "yes no Yes No"], ScratchConfig(vocabulary=600))
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.chat_template = tokenizer.chat_template.replace("'<|assistant|>'", "'<|assistant|><think>\\n'")
    thinking = Local(loaded.generator, ChatFormat(tokenizer))
    talk = judge(model, tmp_path)._prompt(TASK, EPISODE, ITEMS[:1], None)
    prompt = thinking.chat.prompt_ids(tuple(talk))
    ended = (*prompt, *thinking.chat.encode("\n"), tokenizer.get_vocab()["</think>"], *thinking.chat.encode("\n\n"))
    [answer] = thinking.reply([talk], [0])
    assert isinstance(answer, Reply)
    assert float(answer.text) == pytest.approx(probability(thinking, ended), abs=1e-5)


def test_tools_need_a_judge_that_can_write_a_call() -> None:
    with pytest.raises(ValidationError, match=r"search.*url"):
        JudgeConfig(model="judge", items=ITEMS, tools=("search",))

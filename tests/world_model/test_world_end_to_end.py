"""A world model trained from scratch on real transitions, with and without retrieval, as a dynamics and in an audit."""

import asyncio

import pytest
from shop_steps import OpenBuffer, shop_steps

from treeagent.generators.base import Failure
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import ScratchConfig
from treeagent.generators.local import LocalGenerator
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.learners.config import SFTConfig
from treeagent.learners.sft import train_sft
from treeagent.views.tokens import TokenRow
from treeagent.world_model.experience import ExperienceModel
from treeagent.world_model.fidelity import audit
from treeagent.world_model.language import LocalWriter, answer_rows
from treeagent.world_model.transition import Experience
from treeagent.world_model.wording import Wording

WORDING = Wording(instructions="")
SHAPE = ScratchConfig(vocabulary=600, layers=2, width=64, heads=2, context=512)


def tiny_chat(steps: list[Experience]) -> ChatFormat:
    texts = [message.content for one in steps for message in WORDING.prompt(one.history, one.action)]
    return ChatFormat(train_tokenizer([*texts, *map(WORDING.target, steps)], SHAPE))


def test_rows_hold_the_prompt_of_imagination_and_learn_the_whole_answer(open_buffer: OpenBuffer) -> None:
    steps = shop_steps(6)
    chat = tiny_chat(steps)
    buffer = open_buffer()
    buffer.add(steps)
    for row, one in zip(answer_rows(steps, chat, WORDING, buffer, 1), steps, strict=True):
        prompt = row.token_ids[: row.mask.index(True)]
        assert set(row.mask[len(prompt) :]) == {True}
        assert row.token_ids[-1] == chat.stop_id
        assert chat.decode(row.token_ids[len(prompt) :]) == WORDING.target(one)
        text = chat.decode(prompt)
        assert text.count("A similar step.") == 1
        bare = chat.decode(chat.prompt_ids(WORDING.prompt(one.history, one.action)))
        assert text.endswith(bare.removeprefix("<|user|>"))


def test_an_answer_cut_off_or_a_prompt_too_long_is_unreadable() -> None:
    steps = shop_steps(3)
    chat = tiny_chat(steps)
    writer = LocalWriter(LocalGenerator(random_model(chat.tokenizer, SHAPE, 0)), chat, max_new_tokens=3)
    short, long = (WORDING.prompt(steps[0].history, action) for action in ("x", "x " * 999))
    drafts = asyncio.run(writer.write([short, long]))
    assert drafts[0] == Failure("the answer was cut off after 3 tokens")
    assert isinstance(drafts[1], Failure) and "but the model's context holds 512" in drafts[1].reason


@pytest.mark.slow
def test_a_model_from_scratch_learns_the_transitions_it_is_shown() -> None:
    steps = shop_steps(12)
    chat = tiny_chat(steps)
    network = random_model(chat.tokenizer, SHAPE, 0)
    rows = [TokenRow(*row) for row in answer_rows(steps, chat, WORDING)]
    config = SFTConfig(
        optimiser="muon", learning_rate=4e-3, schedule="linear", warmup_steps=10, batch_size=16, max_steps=200
    )
    train_sft(network, chat.tokenizer, rows, config)
    model = ExperienceModel(LocalWriter(LocalGenerator(network), chat, 256), WORDING, max_steps=10)
    found = asyncio.run(audit(model, steps))
    assert found.overall.observation_exact >= 0.95
    assert found.overall.reward_accuracy >= 0.95
    assert found.overall.unreadable == 0.0
    assert found.compounding[2].observation_exact >= 0.9
    assert found.lambda_cap < 1.0  # twelve episodes are weak evidence

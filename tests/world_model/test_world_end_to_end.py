"""A world model trained from scratch on real transitions, with and without retrieval, as a dynamics and in an audit."""

import asyncio

from shop_steps import OpenBuffer, shop_steps

from treeagent.generators.base import Failure
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import ScratchConfig
from treeagent.generators.local import LocalGenerator
from treeagent.generators.scratch import random_model, train_tokenizer
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

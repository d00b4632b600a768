"""Demonstrations as earlier turns: token for token those of a real conversation of these turns, in every template."""

import pytest
from template_families import FAMILIES, family

from treeagent.generators.chat import ChatFormat
from treeagent.types import Message


def shot(*texts: str) -> tuple[Message, ...]:
    return tuple(Message("assistant" if place % 2 else "user", text) for place, text in enumerate(texts))


SHOTS = [shot("find a lamp", " search[lamp]\n", "page 1", "click[buy]"), shot("find a bed", "<think>a bed</think>back")]


def spoken(chat: ChatFormat, *texts: str) -> tuple[Message, ...]:
    """A conversation whose turns have the ids that the chat format gives them."""
    return tuple(
        Message(each.role, each.content, chat.encode_action(each.content) if each.role == "assistant" else ())
        for each in shot(*texts)
    )


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("preface", ["", "Be brief."])
def test_shots_are_the_turns_of_one_long_conversation(name: str, preface: str) -> None:
    """One demonstration and the task after it have the same tokens as if the agent had played both."""
    plain, told = ChatFormat(family(name), preface=preface), ChatFormat(family(name), preface=preface, shots=SHOTS[:1])
    texts = [message.content for message in SHOTS[0]]
    for rest in (["find a door"], ["find a door", "open[door]", "a wall"]):
        assert told.prompt_ids(spoken(told, *rest)) == plain.prompt_ids(spoken(plain, *texts, *rest))


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_prompt_grows_by_what_is_new_and_root_context_holds_the_shots(name: str) -> None:
    chat = ChatFormat(family(name), shots=SHOTS)
    told = spoken(chat, "find a door", "open[door]", "a wall", "back", "a hall")
    root, first, second = told[:1], told[:3], told
    assert chat.context_ids(root) == chat.prompt_ids(root) == chat.read(root).added_ids
    assert chat.prompt_ids(first) == chat.prompt_ids(root) + told[1].token_ids + chat.context_ids(first)
    assert chat.prompt_ids(second) == chat.prompt_ids(first) + told[3].token_ids + chat.context_ids(second)
    assert chat.context_ids(first) == ChatFormat(family(name)).context_ids(first)  # shots do not change it
    shared = chat.shared_ids()
    assert len(shared) > len(chat.encode_action("click[buy]"))
    assert all(chat.prompt_ids(messages)[: len(shared)] == shared for messages in (root, first, second))

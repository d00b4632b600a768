"""Chat templates in the style of today's families: prompts only grow by what is new, whatever is sampled and read."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from template_families import FAMILIES, family, with_template

from treeagent.generators.chat import ChatFormat
from treeagent.types import Message, UserError

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Find a thing.",
            "parameters": {"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]},
        },
    }
]
blanks = st.text(" \t\n\r\u00a0\u3000", max_size=3)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
spelt = st.sampled_from(
    [*(mark for marks, _, end in FAMILIES.values() for mark in (*marks, end)), "\U000ffffc\U000f0000"]
)
text = st.builds(lambda before, middle, after: before + middle + after, blanks, words | spelt, blanks)
thought = st.builds(lambda inner, said: f"<think>\n{inner}\n</think>\n\n{said}", text, text)
names = st.sampled_from(sorted(FAMILIES))
OPENING = {"deepseek": "<｜Assistant｜>", "qwen35": "<|im_start|>assistant\n"}
"""How a turn begins in the templates that open its thought."""


@cache
def chat(name: str, tools: bool = False, instructions: str = "") -> ChatFormat:
    return ChatFormat(family(name), instructions=instructions, tools=TOOLS if tools else ())


def said(format: ChatFormat, words: str, *, cut: bool = False) -> Message:
    ids = format.encode_action(words)
    return Message("assistant", words, ids[:-1] if cut and len(ids) > 1 else ids)


def spelled(format: ChatFormat, *messages: Message) -> str:
    """The prompt as text, including special tokens."""
    return str(format.tokenizer.decode(list(format.prompt_ids(messages))))


@st.composite
def conversations(draw: st.DrawFn, name: str, tools: bool) -> tuple[ChatFormat, tuple[Message, ...]]:
    """Up to four turns, with system messages also for families that have no such role."""
    format = chat(name, tools)
    messages = [Message("system", draw(words.filter(bool)))] if draw(st.booleans()) else []
    messages.append(Message("user", draw(text)))
    for _ in range(draw(st.integers(1, 4))):
        messages += [said(format, draw(text | thought), cut=draw(st.booleans())), Message("user", draw(text))]
    return format, tuple(messages)


@given(st.data(), names, st.booleans())
def test_a_prompt_is_the_earlier_prompt_then_what_was_sampled_then_what_is_new(
    data: st.DataObject, name: str, tools: bool
) -> None:
    format, messages = data.draw(conversations(name, tools))
    for place, message in enumerate(messages):
        if message.role == "assistant":
            before, after = format.prompt_ids(messages[:place]), format.prompt_ids(messages[: place + 2])
            assert after == before + message.token_ids + format.context_ids(messages[: place + 2])


@given(st.data(), names, st.booleans())
def test_only_the_template_ends_turns(data: st.DataObject, name: str, tools: bool) -> None:
    """Every turn of the agent ends exactly once, whoever wrote its end and whatever text the observations hold."""
    format, messages = data.draw(conversations(name, tools))
    [last] = [place for place, message in enumerate(messages) if message.role == "assistant"][-1:]
    bare = tuple(Message(each.role, "x", format.encode_action("x") if each.token_ids else ()) for each in messages)
    assert format.prompt_ids(messages).count(format.stop_id) == format.prompt_ids(bare).count(format.stop_id)
    assert format.stop_id not in messages[last].token_ids[:-1]


def reference(name: str, turns: list[tuple[str, str]]) -> str:
    """The stock template's own rendering."""
    rows = [{"role": role, "content": content} for role, content in turns]
    return str(
        family(name).apply_chat_template(rows, tokenize=False, add_generation_prompt=True, date_string="26 Jul 2024")
    )


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_of_plain_words_a_prompt_spells_what_the_template_renders(name: str) -> None:
    format = chat(name)
    turns = [("user", "find a lamp"), ("assistant", "search[lamp]"), ("user", "a lamp"), ("assistant", "click[1]")]
    turns.append(("user", "bought"))
    messages = [said(format, each) if role == "assistant" else Message("user", each) for role, each in turns]
    expected = reference(name, turns)
    if name in OPENING:  # the tokens that opened the thought were read, and stay; a turn without a thought closes it
        opened, closed = f"{OPENING[name]}<think>\n", "\n</think>\n\n"
        expected = expected.replace(opened, OPENING[name]).replace(OPENING[name], opened + closed)
        expected = expected.removesuffix(closed)
    if name == "mistral":  # the template writes a space before the words; in a sample the model writes it
        expected = expected.replace("[/INST] ", "[/INST]")
    assert spelled(format, *messages) == expected


def made(template: str) -> ChatFormat:
    return ChatFormat(with_template(template, *FAMILIES["qwen"]))


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages[-2:] %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}[assistant]",  # a window
        "{{ messages | length }}{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}[assistant]",
        "{% for m in messages %}[{{ m.role }}]{{ m.content if loop.last else '...' }}<|im_end|>{% endfor %}[assistant]",
    ],
)
def test_a_template_that_rewrites_history_is_refused_with_what_to_do(template: str) -> None:
    with pytest.raises(UserError, match="rewrites earlier turns"):
        made(template)

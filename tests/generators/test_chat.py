"""Conversations as token ids: the prefix property, and templates that cannot have it."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_llama import tokenizer
from transformers import PreTrainedTokenizerFast

from treeagent.generators.chat import ChatFormat
from treeagent.types import Message

CHAT = ChatFormat(tokenizer())
STOP = CHAT.stop_id
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)  # lone surrogates have no UTF-8
text = words | st.sampled_from(["<|end|>", "a<|end|><|assistant|>b", "Action: x<|user|>"])  # marks of the template
sampled_ids = st.lists(st.integers(0, len(tokenizer()) - 1).filter(lambda token: token != STOP), max_size=12)


def said(token_ids: tuple[int, ...]) -> Message:
    return Message("assistant", CHAT.decode(token_ids), token_ids)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    """A task and up to three turns; actions are any ids that a model may sample, not those of a tokenizer's encoding,
    and some were cut off before their stop token."""
    messages = [Message("system", draw(text))] if draw(st.booleans()) else []
    messages.append(Message("user", draw(text)))
    for _ in range(draw(st.integers(0, 3))):
        drawn = draw(sampled_ids)
        messages.append(said((*drawn, STOP) if not drawn or draw(st.booleans()) else tuple(drawn)))
        messages += [Message("user", each) for each in draw(st.lists(text, min_size=1, max_size=2))]
    return tuple(messages)


@settings(deadline=None, max_examples=200)
@given(conversations())
def test_a_longer_conversation_starts_with_the_shorter_one_and_what_was_sampled(messages: tuple[Message, ...]) -> None:
    for place, message in enumerate(messages):
        if message.role == "assistant":
            before = CHAT.prompt_ids(messages[:place])
            after = CHAT.prompt_ids(messages[: place + 2])
            assert after[: len(before)] == before
            assert after[len(before) :][: len(message.token_ids)] == message.token_ids
            assert after == before + message.token_ids + CHAT.context_ids(messages[: place + 2])


@settings(deadline=None, max_examples=200)
@given(conversations())
def test_prompt_ids_spell_the_template(messages: tuple[Message, ...]) -> None:
    """Decoded, the prompt is what the template renders, whatever was sampled and wherever it was cut."""
    rendered = tokenizer().apply_chat_template(
        [{"role": each.role, "content": each.content} for each in messages], tokenize=False, add_generation_prompt=True
    )
    decoded = CHAT.decode(CHAT.prompt_ids(messages))
    assert decoded.replace("\ufffd", "") == str(rendered).replace("\ufffd", "")  # broken UTF-8 may join when whole
    assert CHAT.prompt_ids(messages).count(STOP) >= len(messages)


def test_prompt_ids_by_hand() -> None:
    opening = (Message("user", "a b"),)
    ids = {name: tokenizer().convert_tokens_to_ids(f"<|{name}|>") for name in ("user", "assistant", "end")}
    assert CHAT.prompt_ids(opening) == (ids["user"], *CHAT.encode("a b"), ids["end"], ids["assistant"])
    assert CHAT.context_ids(opening) == CHAT.prompt_ids(opening)
    action = said((*CHAT.encode("hm"), STOP))
    assert action.content == "hm"
    closing = (ids["user"], *CHAT.encode("seen"), ids["end"], ids["assistant"])
    assert CHAT.context_ids((*opening, action, Message("user", "seen"))) == closing


def test_an_action_cut_off_gets_its_stop_token_from_the_context() -> None:
    opening, seen = (Message("user", "a b"),), Message("user", "seen")
    cut, whole = said(CHAT.encode("hm")), said((*CHAT.encode("hm"), STOP))
    assert CHAT.context_ids((*opening, cut, seen)) == (STOP, *CHAT.context_ids((*opening, whole, seen)))
    assert CHAT.prompt_ids((*opening, cut, seen)) == CHAT.prompt_ids((*opening, whole, seen))


def test_another_tokenisation_of_the_same_text_is_kept() -> None:
    opening, seen = (Message("user", "a"),), Message("user", "b")
    usual = CHAT.encode("Action")
    letters = tuple(token for letter in "Action" for token in CHAT.encode(letter))
    assert CHAT.decode(letters) == CHAT.decode(usual) == "Action"
    assert letters != usual
    for ids in (letters, usual):
        prompt = CHAT.prompt_ids((*opening, Message("assistant", "Action", (*ids, STOP)), seen))
        assert prompt[len(CHAT.prompt_ids(opening)) :][: len(ids) + 1] == (*ids, STOP)


def test_an_assistant_message_without_ids_is_refused() -> None:
    with pytest.raises(ValueError, match="'hm' carries no token ids"):
        CHAT.prompt_ids((Message("user", "a"), Message("assistant", "hm"), Message("user", "b")))


def other_template(template: str | None) -> PreTrainedTokenizerFast:
    changed = copy.deepcopy(tokenizer())
    changed.chat_template = template
    return changed


@pytest.mark.parametrize(
    "rewrite",
    [
        "{{ m['content'] if loop.last or m['role'] != 'assistant' else '(cut)' }}",  # earlier actions dropped
        "{{ m['content'] }}{{ loop.length }}",  # earlier turns depend on later ones
        "{{ m['content'] | upper }}",
    ],
)
def test_a_template_that_rewrites_earlier_turns_is_refused(rewrite: str) -> None:
    template = "{% for m in messages %}[{{ m['role'] }}]" + rewrite + "<|end|>{% endfor %}[assistant]"
    chat = ChatFormat(other_template(template))
    opening = (Message("user", "a"),)
    chat.prompt_ids(opening)
    with pytest.raises(ValueError, match="rewrites earlier turns"):
        chat.prompt_ids((*opening, said((*CHAT.encode("hm"), STOP)), Message("user", "b")))


@pytest.mark.parametrize("template", [None, ""])
def test_a_tokenizer_without_a_chat_template_is_refused(template: str | None) -> None:
    with pytest.raises(ValueError, match="has no chat template: give it one"):
        ChatFormat(other_template(template))


def test_a_tokenizer_without_a_stop_token_is_refused() -> None:
    endless = copy.deepcopy(tokenizer())
    endless.eos_token = None
    with pytest.raises(ValueError, match="has no end-of-sequence token"):
        ChatFormat(endless)


@given(words)
def test_demonstrated_actions_end_with_the_stop_token(action: str) -> None:
    ids = CHAT.encode_action(action)
    assert ids[-1] == STOP
    assert CHAT.decode(ids) == CHAT.decode(ids[:-1]) == action

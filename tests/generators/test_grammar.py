"""ReAct text: written turns are parsed again, and malformed ones carry the reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeagent.generators.grammar import ReAct

REACT = ReAct()
line = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"])).map(str.strip)
thoughts = line.filter(lambda words: not words.startswith("Thought:"))
steps = line.filter(lambda words: words and "Action: " not in words)


@given(thoughts, steps)
def test_what_is_written_is_read(thought: str, call: str) -> None:
    action = REACT.read(REACT.write(thought, call), (1, 2), (-0.5, -0.25))
    assert (action.thought, action.call, action.error) == (thought, call, "")
    assert (action.token_ids, action.logprobs, action.logprob) == ((1, 2), (-0.5, -0.25), -0.75)


@given(st.text())
def test_any_text_is_an_action(text: str) -> None:
    action = REACT.read(text)
    assert action.text == text
    assert bool(action.error) != bool(action.call)
    assert isinstance(action.call, str) and "\n" not in action.call


@pytest.mark.parametrize(
    ("text", "thought", "call"),
    [
        ("Thought: a\nAction: b", "a", "b"),
        ("Action: b", "", "b"),
        ("  Thought:a  \n\nAction:   b c  \n", "a", "b c"),
        ("no mark\nAction: b", "no mark", "b"),
        ("Thought: x\nAction:b", "x", "b"),
        ("Thought: my last Action: go\nAction: b", "my last Action: go", "b"),
        ("Thought: first Action: a\nthen more\nAction: b", "first Action: a\nthen more", "b"),
    ],
)
def test_well_formed_steps(text: str, thought: str, call: str) -> None:
    action = REACT.read(text)
    assert (action.thought, action.call, action.error) == (thought, call, "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "there is no line that starts with 'Action:'"),
        ("Thought: I wonder", "there is no line that starts with 'Action:'"),
        ("click[buy now]", "there is no line that starts with 'Action:'"),
        ("I will not do Action: buy", "there is no line that starts with 'Action:'"),
        ("Thought: my last Action: go left was wrong", "there is no line that starts with 'Action:'"),
        ("Thought: a\nAction: ", "nothing follows 'Action:'"),
        ("Thought: a\nAction:  \n ", "nothing follows 'Action:'"),
        ("Action: a\nand more", "the action is longer than one line"),
        ("Action: a\nAction: b", "there is more than one action"),
        ("Thought: c\nAction: a\nThought: d\nAction: b", "there is more than one action"),
    ],
)
def test_malformed_steps(text: str, reason: str) -> None:
    action = REACT.read(text, (3,), (-1.0,))
    assert (action.text, action.call, action.error) == (text, "", reason)
    assert (action.token_ids, action.logprobs) == ((3,), (-1.0,))


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("Action:", True),
        ("Thought: a\nAction:", True),
        ("Thought: a\nAction: b", True),
        ("\nAction:", True),
        ("", False),
        ("Thought: a\nAction", False),
        ("Thought: my Action: b", False),
        ("Thought: a\n Action: b", False),
        ("Reaction:", False),
        ("hm</think>Action:", True),
    ],
)
def test_an_action_begins_where_a_line_starts_with_its_mark(text: str, begins: bool) -> None:
    assert REACT.begins_action(text) == begins


@given(thoughts, steps, st.data())
def test_a_turn_begins_its_action_once(thought: str, call: str, data: st.DataObject) -> None:
    """``begins_action`` is true from the mark on."""
    text = REACT.write(thought, call)
    end = data.draw(st.integers(0, len(text)))
    assert REACT.begins_action(text[:end]) == (end >= len(text) - len(f" {call}"))


@given(thoughts)
def test_a_thought_alone_has_no_call_and_nothing_wrong(thought: str) -> None:
    text = REACT.write(thought, "x").removesuffix(" x")
    action = REACT.read_thought(text, (1, 2), (-0.5, -0.25))
    assert (action.text, action.thought, action.call, action.error) == (text, thought, "", "")
    assert (action.token_ids, action.logprobs) == ((1, 2), (-0.5, -0.25))


def test_what_a_token_says_beyond_the_mark_is_no_thought() -> None:
    assert REACT.read_thought("Thought: a\nAction: open[").thought == "a"

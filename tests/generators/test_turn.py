"""Turns as ReAct text and as tool calls: what is written is read again, and what is malformed carries the reason."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeagent.envs.base import ToolSpec
from treeagent.envs.calls import as_call, read_call
from treeagent.envs.shop import ShopEnv, ShopOptions
from treeagent.generators.turn import ReAct, ToolCalls, make_grammar
from treeagent.types import ToolCall, UserError

REACT, HERMES = ReAct(), ToolCalls()
line = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"])).map(str.strip)
lines = line.filter(lambda words: not words.startswith("Thought:"))
steps = line.filter(lambda words: words and "Action: " not in words)


@given(lines, steps)
def test_what_is_written_in_react_is_read(thought: str, call: str) -> None:
    action = REACT.read(REACT.write(thought, call), (1, 2), (-0.5, -0.25))
    assert (action.thought, action.call, action.error) == (thought, call, "")
    assert (action.token_ids, action.logprobs, action.logprob) == ((1, 2), (-0.5, -0.25), -0.75)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "there is no line that starts with 'Action:'"),
        ("Thought: I wonder", "there is no line that starts with 'Action:'"),
        ("I will not do Action: buy", "there is no line that starts with 'Action:'"),
        ("Thought: my last Action: go left was wrong", "there is no line that starts with 'Action:'"),
        ("Thought: a\nAction: ", "nothing follows 'Action:'"),
        ("Action: a\nand more", "the action is longer than one line"),
        ("Action: a\nAction: b", "there is more than one action"),
    ],
)
def test_malformed_steps(text: str, reason: str) -> None:
    action = REACT.read(text, (3,), (-1.0,))
    assert (action.text, action.call, action.error) == (text, "", reason)
    assert (action.token_ids, action.logprobs) == ((3,), (-1.0,))


FIND = ToolCall("find", {"thing": "a lamp", "least": 2})
plain = st.text(st.characters(exclude_categories=["Cs"]))
thoughts = plain.map(str.strip).filter(lambda text: not any(mark in text for mark in "<{[\r"))
names = st.text("abcdefgh_.-1", min_size=1)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | plain,
    lambda inner: st.lists(inner) | st.dictionaries(plain, inner),
    max_leaves=4,
)
tool_calls = st.builds(ToolCall, names, st.dictionaries(plain, values, max_size=3))
spoken = thoughts.filter(bool)


NO_JSON = "the call is no JSON"
BEYOND, HALF = "Integer exceeds 64-bit range", "str is not valid UTF-8: surrogates not allowed"


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth > 1 else []


@given(thought=thoughts, call=tool_calls | spoken)
def test_what_is_written_is_read(thought: str, call: str | ToolCall) -> None:
    action = HERMES.read(HERMES.write(thought, call), (1, 2), (-0.5, -0.25))
    assert (action.thought, action.call, action.error) == (thought, call, "")
    assert (action.token_ids, action.logprobs) == ((1, 2), (-0.5, -0.25))


marks = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<think>", "</think>"]


@given(thought=thoughts, call=tool_calls, data=st.data())
def test_a_turn_begins_its_call_once_and_its_thought_is_known_there(
    thought: str, call: ToolCall, data: st.DataObject
) -> None:
    text = HERMES.write(thought, call)
    begin = text.index(HERMES.mark) + len(HERMES.mark)
    end = data.draw(st.integers(0, len(text)))
    assert HERMES.begins_action(text[:end]) == (end >= begin)
    assert HERMES.read(text[:begin]).thought == thought


def written(name: object, arguments: object, **more: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments} | more)}</tool_call>"


@pytest.mark.parametrize(
    ("text", "thought"),
    [
        (written("find", {"thing": "a lamp", "least": 2}), ""),
        (
            "<think>\nwhich <tool_call>?\n</think>\n\nI look.\n<tool_call>\n"
            '{"arguments": {"thing": "a lamp", "least": 2}, "name": "find"}\n</tool_call>\n',
            "which <tool_call>?\n\n\nI look.",
        ),
        ("<think>or <tool_call>?</think>" + written("find", {"thing": "a lamp", "least": 2}), "or <tool_call>?"),
    ],
)
def test_tool_calls(text: str, thought: str) -> None:
    action = HERMES.read(text)
    assert (action.thought, action.call, action.error) == (thought, FIND, "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (written("a", {}) * 2, "there is more than one <tool_call>"),
        ('<tool_call>{"name": "a", "arguments": {}}', "<tool_call> is not closed"),
        (written("a", {}) + " so", "something follows </tool_call>"),
        (written("a", "{}"), "the arguments of a must be an object"),
        (written(None, {}), "the tool must be named by a text"),
        (written("a", {}, why="?"), "write a JSON object of name, arguments"),
        ('<tool_call>{"name": "a", "parameters": {}}</tool_call>', "write a JSON object of name, arguments"),
        ("<tool_call>find a lamp</tool_call>", f"{NO_JSON}: Expecting value: line 1 column 1 (char 0)"),
        ('<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>', f"{NO_JSON}: unexpected character"),
        ('<tool_call>{"name": "a", "arguments": {"x": 1e999}}</tool_call>', f"{NO_JSON}: number is infinity"),
        (written("a", {"x": 2**64}), f"the call cannot be passed on: {BEYOND}"),
        (written("a", {"x": "\ud83d"}), f"the call cannot be passed on: {HALF}"),
        (written("a", {"x": nested(100)}), "the call is nested more than 100 deep"),
        ('[TOOL_CALLS] [{"name": "a", "arguments": {}}]', "this is no tool call of your format"),
        ("{}</tool_call>", "this is no tool call of your format"),
        ("<think>hm", "after the thought there is neither a tool call nor a text"),
        ("<think>hm</think>\n", "after the thought there is neither a tool call nor a text"),
        ("", "after the thought there is neither a tool call nor a text"),
    ],
)
def test_malformed_tool_calls(text: str, reason: str) -> None:
    action = HERMES.read(text)
    assert (action.text, action.call) == (text, "") and action.error.startswith(reason)


def test_a_thought_may_mention_or_draft_a_call() -> None:
    """The template has opened the thought."""
    whole = HERMES.write("", ToolCall("set", {"text": "a b"}))
    for thought in ("I could write <tool_call> here.", f"Perhaps\n{whole.replace('</think>', '')}\n?", "So."):
        said = HERMES.read(f"{thought}\n</think>\n\nThe answer is 5.")
        assert (said.call, said.error) == ("The answer is 5.", "")
        assert not HERMES.begins_action(f"{thought}\n</think>\n\nThe", opened=True)
    for turn in (whole, f"So.\n</think>\n\n{whole}"):
        assert HERMES.read(turn).call == ToolCall("set", {"text": "a b"})
    assert HERMES.begins_action(f"So.\n</think>\n\n{whole}", opened=True)


@pytest.mark.parametrize(
    "call",
    [
        "<tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value></tool_call>",
        "<|tool_call_start|>[NAME(KEY=VALUE)]<|tool_call_end|>",
        '{"name": NAME, "parameters": {}}',
    ],
)
def test_a_template_that_writes_calls_otherwise_is_refused(call: str) -> None:
    template = f"{{% if tools %}}{{{{ tools | tojson }}}}{call}{{% endif %}}"
    with pytest.raises(UserError, match=r"policy\.format"):
        make_grammar("tools", template, SHOP.tools())
    assert make_grammar("react", template, SHOP.tools()) == REACT
    assert make_grammar("tools", template) == HERMES  # without tools, a turn says a text
    assert make_grammar("tools", f"{{{{ message['tool_calls'] }}}}{call[1:]}", SHOP.tools()) == HERMES


SHOP = ShopEnv(ShopOptions(products=100))

SCHEMAS: list[tuple[dict[str, object], object]] = [
    ({"type": "string"}, "3"),
    ({"type": "integer"}, 3),
    ({"type": "number"}, 2.5),
    ({"type": "boolean"}, True),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 3),
    ({"type": ["integer", "null"]}, None),
    ({"enum": [1, 2, 3]}, 2),
    ({"$ref": "#/$defs/Page"}, 3),
    ({"type": "array", "items": {"type": "string"}}, ["a", "b"]),
]


@pytest.mark.parametrize("name", ["open", "num/open", "open page"])
@pytest.mark.parametrize("format", ["react", "tools"])
@pytest.mark.parametrize(("schema", "value"), SCHEMAS)
def test_every_format_passes_the_same_values(schema: dict[str, object], value: object, format: str, name: str) -> None:
    parameters = {"properties": {"page": schema}, "required": ["page"], "$defs": {"Page": {"type": "integer"}}}
    tool, grammar = ToolSpec(name, "Open a page.", parameters), make_grammar(format)
    action = grammar.read(grammar.write("so", ToolCall(name, {"page": value})))
    assert read_call(as_call(action.call, (tool,)), (tool,)) == ToolCall(name, {"page": value})
    if format == "react":
        text = value if isinstance(value, str) else json.dumps(value)
        assert read_call(f"{name}[{text}]", (tool,)) == ToolCall(name, {"page": value})


def tool(name: str, required: list[str], **properties: dict[str, object]) -> ToolSpec:
    return ToolSpec(name, "Do it.", {"type": "object", "properties": properties, "required": required})

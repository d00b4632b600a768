"""Tool calls in the syntaxes of other families: written calls are read again, malformed ones carry the reason, and
every well-formed turn, and no other, can be drawn."""

from collections.abc import Sequence
from functools import cache, partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from template_families import family

from treeagent.contrib.formats.json_calls import LlamaCalls, MistralCalls
from treeagent.contrib.formats.tags import TagCalls
from treeagent.envs.base import ToolSpec
from treeagent.generators.chat import ChatFormat
from treeagent.generators.structured import Form
from treeagent.generators.turn import Grammar, ToolCalls, make_grammar
from treeagent.types import ToolCall

TOOLS = [
    ToolSpec(
        "set",
        "",
        {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "number": {"type": "integer"},
                "on": {"type": ["boolean", "null"]},
                "either": {"type": ["string", "integer"]},
                "any": {},
                "year": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "level": {"enum": ["1", "2"]},
                "size": {"$ref": "#/$defs/size"},
                "kind": {"type": "string", "enum": ["new", "old"]},
            },
            "required": ["text"],
            "$defs": {"size": {"type": "string"}},
        },
    ),
    ToolSpec("back", "", {"type": "object", "properties": {}}),
]
LLAMA, MISTRAL, TAGS = LlamaCalls(TOOLS), MistralCalls(TOOLS), TagCalls(TOOLS)
SYNTAXES: list[ToolCalls] = [LLAMA, MISTRAL]

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


def test_a_turn_of_agent_q_has_a_plan_first() -> None:
    grammar, call = make_grammar("plan", "", TOOLS), "set[now]"
    for thought, text in (
        ("", "Command: set[now]"),
        ("it is late", "Thought: it is late\nCommand: set[now]"),
        ("set, then go\nit is late", "Plan: set, then go\nThought: it is late\nCommand: set[now]"),
    ):
        assert grammar.write(thought, call) == text
        assert (grammar.read(text).thought, grammar.read(text).call) == (thought, call)
        chat = ChatFormat(family("qwen35"))
        held = Form(chat, partial(grammar.rules, [GO, SAY]))
        assert may_be_drawn(held, chat, ids_of(chat, text.replace("set[now]", "say[now]")))
    assert grammar.read("Plan: set\nThought: now\nAction: set[now]").error


def read_call(grammar: Grammar, text: str) -> str | ToolCall:
    action = grammar.read(text)
    assert action.error == "", action.error
    return action.call


@pytest.mark.parametrize("grammar", SYNTAXES, ids=repr)
@given(thought=thoughts, call=tool_calls | spoken)
def test_what_is_written_is_read(grammar: Grammar, thought: str, call: str | ToolCall) -> None:
    action = grammar.read(grammar.write(thought, call), (1, 2), (-0.5, -0.25))
    assert (action.thought, action.call, action.error) == (thought, call, "")
    assert (action.token_ids, action.logprobs) == ((1, 2), (-0.5, -0.25))


def tagged(name: str, **values: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (tagged("set", text="5"), {"text": "5"}),
        (tagged("set", text="a\n\n  b </parameter> c"), {"text": "a\n\n  b </parameter> c"}),
        (tagged("set", text="<tool_call> </tool_call>"), {"text": "<tool_call> </tool_call>"}),
        (tagged("set", text="", number="-5", on="True"), {"text": "", "number": -5, "on": True}),
        (tagged("set", on="null", either="5", any='"5"'), {"on": None, "either": 5, "any": '"5"'}),
        (tagged("set", either="five", any="[1, 2]"), {"either": "five", "any": [1, 2]}),
        (tagged("set", year="2024", level="1", size="42"), {"year": "2024", "level": "1", "size": "42"}),
        (tagged("set", year="None", either="5.5"), {"year": None, "either": "5.5"}),
        (tagged("new", text="5", word="x"), {"text": 5, "word": "x"}),
        ("I look.\n<tool_call><function=set><parameter=text>a</parameter></function></tool_call>", {"text": "a"}),
        (f"<think>\n{tagged('back')}?\n</think>\n\n{tagged('set', text='</think>')}", {"text": "</think>"}),
    ],
)
def test_calls_in_tags(text: str, arguments: dict[str, object]) -> None:
    call = read_call(TAGS, text)
    assert isinstance(call, ToolCall)
    assert call.arguments == arguments
    assert {key: type(value) for key, value in call.arguments.items()} == {
        key: type(value) for key, value in arguments.items()
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (tagged("set", text="a").removesuffix("</tool_call>"), "<tool_call> is not closed"),
        (tagged("set", text="a") + tagged("set", text="b"), "a turn makes one tool call"),
        (tagged("set", number="five"), "the argument number is no integer"),
        (tagged("set", on="yes"), "the argument on is no boolean or null"),
        (tagged("set", number='"5"'), "the argument number is no integer"),
        (tagged("set", number="true"), "the argument number is no integer"),
        (
            tagged("set", text="a").replace("</function>", "<parameter=text>\nb\n</parameter>\n</function>"),
            "a key is given twice",
        ),
        ('<tool_call>{"name": "set", "arguments": {"text": "a"}}</tool_call>', "write <function=NAME>"),
        ("<function=set></function></tool_call>", "this is no tool call of your format"),
    ],
)
def test_malformed_calls_in_tags(text: str, reason: str) -> None:
    action = TAGS.read(text)
    assert action.call == "" and action.error.startswith(reason), action.error


WHERE = {"type": "string", "enum": ["north", "south"]}
STEPS = {"type": "integer", "minimum": 0, "maximum": 9}
GO = ToolSpec(
    "go", "", {"type": "object", "properties": {"where": WHERE, "steps": STEPS}, "required": ["where", "steps"]}
)
SAY = ToolSpec("say", "", {"type": "object", "properties": {"words": {"type": "string"}}, "required": ["words"]})
CASES = [("tags", "qwen35"), ("llama", "llama3"), ("mistral", "mistral")]
moves = st.builds(
    lambda where, steps: ToolCall("go", {"where": where, "steps": steps}),
    st.sampled_from(["north", "south"]),
    st.integers(0, 9),
)
words = st.text("abc .,!?", max_size=12).map(str.strip)


@cache
def talk(format: str, name: str) -> tuple[ChatFormat, Grammar]:
    return ChatFormat(family(name)), make_grammar(format, str(family(name).chat_template), [GO, SAY])


@cache
def form(format: str, name: str, tooled: bool = True) -> Form:
    chat, grammar = talk(format, name)
    return Form(chat, partial(grammar.rules, [GO, SAY] if tooled else ()))


def ids_of(chat: ChatFormat, text: str) -> list[int]:
    """The ids as a model writes them: special tokens stay whole, and a thought opened by the template is closed."""
    if chat.opens_thought:
        text = f"so</think>{text}"
    return [*chat.tokenizer(text, add_special_tokens=False)["input_ids"], chat.stop_id]


def may_be_drawn(held: Form, chat: ChatFormat, ids: Sequence[int]) -> bool:
    states = held.begun([()], 1)
    for token in ids:
        if not held.allowed(states, len(chat.tokenizer))[0, 0, token]:
            return False
        held.advance(states, [[token]])
    return True


@pytest.mark.parametrize(("format", "name"), CASES)
@settings(max_examples=12)
@given(thought=words, call=moves | words.map(lambda text: ToolCall("say", {"words": text})))
def test_what_is_well_formed_can_be_drawn(format: str, name: str, thought: str, call: ToolCall) -> None:
    chat, grammar = talk(format, name)
    ids = ids_of(chat, grammar.write(thought, call))
    assert may_be_drawn(form(format, name), chat, ids)
    assert grammar.read(chat.decode(ids)).call == call

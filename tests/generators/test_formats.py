"""JSON actions and native tool calls: written calls are parsed again, and malformed or ambiguous ones carry an
error."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from template_families import FAMILIES, family

from treeagent.config import PolicyConfig, RunConfig
from treeagent.contrib.worlds.frozenlake import FrozenLakeEnv
from treeagent.contrib.worlds.sql import SqlEnv
from treeagent.envs import EnvDynamics
from treeagent.envs.base import Env, ToolSpec
from treeagent.envs.calls import as_call
from treeagent.envs.shop import ShopEnv, ShopOptions
from treeagent.generators.formats import Format, make_grammar, written_in
from treeagent.generators.grammar import Grammar, JsonAction, ReAct, openai_tools
from treeagent.generators.tag_calls import TagCalls
from treeagent.generators.tool_calls import ToolCalls
from treeagent.pipeline.build import conversation, known_tools
from treeagent.pipeline.demonstrate import demonstrate
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.record import from_record, to_record
from treeagent.types import Action, Message, State, Task, ToolCall, UserError

JSON, HERMES, LLAMA, MISTRAL = JsonAction(), ToolCalls("hermes"), ToolCalls("llama"), ToolCalls("mistral")
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
TAGS = TagCalls.of(TOOLS)
STRUCTURED: list[Grammar] = [JSON, HERMES, LLAMA, MISTRAL]
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


def read_call(grammar: Grammar, text: str) -> str | ToolCall:
    action = grammar.read(text)
    assert action.error == "", action.error
    return action.call


@pytest.mark.parametrize("grammar", STRUCTURED, ids=repr)
@given(thought=thoughts, call=tool_calls | spoken)
def test_what_is_written_is_read(grammar: Grammar, thought: str, call: str | ToolCall) -> None:
    action = grammar.read(grammar.write(thought, call), (1, 2), (-0.5, -0.25))
    assert (action.thought, action.call, action.error) == (thought, call, "")
    assert (action.token_ids, action.logprobs) == ((1, 2), (-0.5, -0.25))


marks = ["<action>", "</action>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<think>", "</think>"]
signs = ["{", "}", "[", "]", "\n", " ", '{"name": "a", "arguments": {}}', '{"name": "a", "parameters": {}}']
pieces = st.sampled_from([*marks, *signs, '{"when": true, "which": "a", "how": {}}'])


@pytest.mark.parametrize("grammar", STRUCTURED, ids=repr)
@given(text=st.lists(pieces | plain, max_size=8).map("".join))
def test_any_text_is_an_action(grammar: Grammar, text: str) -> None:
    action = grammar.read(text)
    assert action.text == text
    assert bool(action.error) != bool(action.call)


@pytest.mark.parametrize("grammar", STRUCTURED, ids=repr)
@given(thought=thoughts, call=tool_calls, data=st.data())
def test_a_turn_begins_its_call_once_and_its_thought_is_known_there(
    grammar: Grammar, thought: str, call: ToolCall, data: st.DataObject
) -> None:
    text = grammar.write(thought, call)
    begin = text.index(grammar.mark) + len(grammar.mark)
    end = data.draw(st.integers(0, len(text)))
    assert grammar.begins_action(text[:end]) == (end >= begin)
    action = grammar.read_thought(text[:begin], (1, 2), (-0.5, -0.25))
    assert (action.text, action.thought, action.call, action.error) == (text[:begin], thought, "", "")


def written(**parts: object) -> str:
    return f"<action>{json.dumps(parts)}</action>"


@pytest.mark.parametrize(
    ("text", "call"),
    [
        (written(when=True, which="find", how={"thing": "a lamp", "least": 2}), FIND),
        ("I look.\n" + written(when=True, which="back", how={}) + "\n", ToolCall("back", {})),
        (written(when=False, which=None, how={"text": " 42 "}), "42"),
        ("<think>or <action>?</think>" + written(when=True, which="back", how={}), ToolCall("back", {})),
        ('<action>\n{"how": {}, "which": "back",\n"when": true}\n</action>', ToolCall("back", {})),
    ],
)
def test_json_actions(text: str, call: str | ToolCall) -> None:
    assert read_call(JSON, text) == call


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("I look.", "there is no <action>"),
        ("<think>" + written(when=True, which="back", how={}), "there is no <action>"),
        (written(when=True, which="a", how={}) * 2, "there is more than one <action>"),
        ('<action>{"when": true', "<action> is not closed"),
        (written(when=True, which="a", how={}) + " done", "something follows </action>"),
        ("<action>find a lamp</action>", "the call is no JSON: Expecting value: line 1 column 1 (char 0)"),
        ('<action>{"when": true, "when": false, "which": null, "how": {}}</action>', "a key is given twice"),
        ('<action>{"when": true, "which": "a", "how": {"x": NaN}}</action>', f"{NO_JSON}: unexpected character"),
        ('<action>{"when": true, "which": "a", "how": {"x": 1e999}}</action>', f"{NO_JSON}: number is infinity"),
        (written(when=True, which="a", how={"x": 2**64}), f"the call cannot be passed on: {BEYOND}"),
        (
            '<action>{"when": true, "which": "a", "how": {"x": "\\ud83d"}}</action>',
            f"the call cannot be passed on: {HALF}",
        ),
        (written(when=True, which="a", how={"x": nested(100)}), "the call is nested more than 100 deep"),
        (written(when=True, which="a"), "write a JSON object of when, which, how"),
        (written(when=True, which="a", how={}, why="?"), "write a JSON object of when, which, how"),
        (written(when="yes", which="a", how={}), "when must be true or false"),
        (written(when=1, which="a", how={}), "when must be true or false"),
        (written(when=True, which=None, how={}), "the tool must be named by a text"),
        (written(when=True, which="a", how="x"), "the arguments of a must be an object"),
        (written(when=False, which="a", how={"text": "x"}), "which must be null where when is false"),
        (written(when=False, which=None, how={"thing": "x"}), "write a JSON object of text"),
        (written(when=False, which=None, how={"text": " "}), "text must be a text that is not empty"),
    ],
)
def test_malformed_json_actions(text: str, reason: str) -> None:
    action = JSON.read(text)
    assert (action.text, action.call) == (text, "") and action.error.startswith(reason)


def test_what_a_call_holds_can_be_kept_with_its_tree() -> None:
    """The widest integers, a whole surrogate pair, and nesting up to the limit."""
    how = {"x": [2**63, -(2**63), 1e308, "\U0001f600", nested(97)]}
    action = JSON.read(written(when=True, which="a", how=how))
    assert action.call == ToolCall("a", how)
    tree = Tree(Task("t", "t"), 0, Node(State(Task("t", "t"), (Message("user", "go"),)), edges=[Edge(action, 1.0)]))
    assert from_record(orjson.loads(orjson.dumps(to_record(tree)))).root.edges[0].action == action


@pytest.mark.parametrize(
    ("grammar", "text", "thought"),
    [
        (HERMES, '<tool_call>{"name": "find", "arguments": {"thing": "a lamp", "least": 2}}</tool_call>', ""),
        (
            HERMES,
            "<think>\nwhich <tool_call>?\n</think>\n\nI look.\n<tool_call>\n"
            '{"arguments": {"thing": "a lamp", "least": 2}, "name": "find"}\n</tool_call>\n',
            "which <tool_call>?\n\n\nI look.",
        ),
        (LLAMA, '{"name": "find", "parameters": {"thing": "a lamp", "least": 2}}', ""),
        (LLAMA, 'I look.\n{"name": "find", "parameters": {"thing": "a lamp", "least": 2}}', "I look."),
        (LLAMA, '<|python_tag|>{"name": "find", "parameters": {"thing": "a lamp", "least": 2}}', ""),
        (MISTRAL, '[TOOL_CALLS] [{"name": "find", "arguments": {"thing": "a lamp", "least": 2}}]', ""),
        (MISTRAL, 'I look.[TOOL_CALLS]find[ARGS]{"thing": "a lamp", "least": 2}', "I look."),
    ],
)
def test_native_tool_calls(grammar: Grammar, text: str, thought: str) -> None:
    action = grammar.read(text)
    assert (action.thought, action.call, action.error) == (thought, FIND, "")


@pytest.mark.parametrize(
    ("grammar", "text", "reason"),
    [
        (HERMES, "<tool_call>{}</tool_call><tool_call>{}</tool_call>", "there is more than one <tool_call>"),
        (HERMES, '<tool_call>{"name": "a", "arguments": {}}', "<tool_call> is not closed"),
        (HERMES, '<tool_call>{"name": "a", "arguments": {}}</tool_call> so', "something follows </tool_call>"),
        (HERMES, '<tool_call>{"name": "a", "arguments": "{}"}</tool_call>', "the arguments of a must be an object"),
        (HERMES, '<tool_call>{"name": "a", "parameters": {}}</tool_call>', "write a JSON object of name, arguments"),
        (HERMES, '[TOOL_CALLS] [{"name": "a", "arguments": {}}]', "this is no tool call of your format"),
        (HERMES, "{}</tool_call>", "this is no tool call of your format"),
        (HERMES, "<think>hm", "after the thought there is neither a tool call nor a text"),
        (HERMES, "<think>hm</think>\n", "after the thought there is neither a tool call nor a text"),
        (HERMES, "", "after the thought there is neither a tool call nor a text"),
        (
            LLAMA,
            '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}',
            "the call is no JSON: Extra data: line 1 column 32 (char 31)",
        ),
        (LLAMA, '{"name": "a", "arguments": {}}', "write a JSON object of name, parameters"),
        (LLAMA, '<tool_call>{"name": "a", "arguments": {}}</tool_call>', "this is no tool call of your format"),
        (MISTRAL, "[TOOL_CALLS] []", "a turn makes one tool call"),
        (MISTRAL, '[TOOL_CALLS] [{"name": "a", "arguments": {}}, {}]', "a turn makes one tool call"),
        (MISTRAL, "[TOOL_CALLS]a", "the call is no JSON: Expecting value: line 1 column 1 (char 0)"),
        (MISTRAL, '[TOOL_CALLS] {"name": "a"}', "the call is no JSON: Expecting value: line 1 column 1 (char 0)"),
        (MISTRAL, "[TOOL_CALLS] [[]]", "write a JSON object of name, arguments"),
    ],
)
def test_malformed_tool_calls(grammar: Grammar, text: str, reason: str) -> None:
    action = grammar.read(text)
    assert (action.call, action.error) == ("", reason)


@pytest.mark.parametrize("grammar", [HERMES, LLAMA, MISTRAL], ids=repr)
def test_a_turn_without_a_tool_call_says_its_text(grammar: Grammar) -> None:
    action = grammar.read("<think>\na way?\n</think>\n\n go north\n")
    assert (action.thought, action.call, action.error) == ("a way?", "go north", "")


def test_a_call_nested_too_deeply_is_malformed() -> None:
    text = f'<tool_call>{{"name": "a", "arguments": {"[" * 100_000}}}</tool_call>'
    assert HERMES.read(text).error.startswith("maximum recursion depth") or "no JSON" in HERMES.read(text).error


@pytest.mark.parametrize(
    ("name", "grammar"),
    [
        *(("qwen", HERMES), ("qwen35", TAGS), ("llama3", LLAMA)),
        *(("mistral", MISTRAL), ("gemma", HERMES), ("deepseek", HERMES)),
    ],
)
def test_tool_calls_are_spelt_as_the_template_spells_them(name: str, grammar: Grammar) -> None:
    assert make_grammar("tools", str(family(name).chat_template), TOOLS) == grammar
    assert set(FAMILIES) == {"qwen", "qwen35", "llama3", "mistral", "gemma", "deepseek"}
    assert make_grammar("react") == ReAct()
    assert make_grammar("json") == JSON


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


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"))
tagged_calls = st.fixed_dictionaries(
    {"text": texts},
    optional={"number": st.integers(-(2**63), 2**63), "on": st.booleans() | st.none(), "kind": st.just("new")},
)


@given(thought=thoughts, arguments=tagged_calls)
def test_what_is_written_in_tags_is_read(thought: str, arguments: dict[str, object]) -> None:
    action = TAGS.read(TAGS.write(thought, ToolCall("set", arguments)))
    assert (action.thought, action.call, action.error) == (thought, ToolCall("set", arguments), "")


@pytest.mark.parametrize(
    "call",
    [
        "<tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value></tool_call>",
        "<|tool_call_start|>[NAME(KEY=VALUE)]<|tool_call_end|>",
        "<seed:tool_call>\n<function=NAME>\n<parameter=KEY>VALUE</parameter>\n</function>\n</seed:tool_call>",
        '<TOOLCALL>[{"name": NAME, "arguments": {}}]</TOOLCALL>',
    ],
)
def test_a_template_that_writes_calls_otherwise_is_refused(call: str) -> None:
    template = f"{{% if tools %}}{{{{ tools | tojson }}}}{call}{{% endif %}}"
    with pytest.raises(UserError, match=r"policy\.format"):
        make_grammar("tools", template, TOOLS)
    assert make_grammar("react", template, TOOLS) == ReAct()
    assert make_grammar("tools", template) == HERMES  # without tools, a turn says a text
    assert make_grammar("tools", f"{{{{ message['tool_calls'] }}}}{call[1:]}", TOOLS) == HERMES  # it writes no tools


@pytest.mark.parametrize("grammar", [HERMES, TAGS, MISTRAL, LLAMA], ids=repr)
def test_a_thought_may_mention_or_draft_a_call(grammar: Grammar) -> None:
    """The template has opened the thought."""
    whole = grammar.write("", ToolCall("set", {"text": "a </think> b"}))
    for thought in (f"I could write {grammar.mark} here.", f"Perhaps\n{whole.replace('</think>', '')}\n?", "So."):
        said = grammar.read(f"{thought}\n</think>\n\nThe answer is 5.")
        assert (said.call, said.error) == ("The answer is 5.", "")
        assert not grammar.begins_action(f"{thought}\n</think>\n\nThe", opened=True)
    assert read_call(grammar, f"So.\n</think>\n\n{whole}") == ToolCall("set", {"text": "a </think> b"})
    assert grammar.begins_action(f"So.\n</think>\n\n{whole}", opened=True)


def test_the_syntax_of_written_turns_is_found() -> None:
    for grammar in (HERMES, LLAMA, MISTRAL, TagCalls()):
        turns = [grammar.write("so <tool_call>?", call) for call in ("go north", FIND)]
        assert written_in("tools", turns) == grammar
    assert written_in("tools", ["go north"]) == HERMES


SHOP, SQL, LAKE = ShopEnv(ShopOptions(products=100)), SqlEnv(), FrozenLakeEnv()


def shown(env: Env, grammar: Grammar, count: int = 3) -> list[Tree]:
    player = env.demonstrator(0.0)
    assert player is not None
    return list(demonstrate(EnvDynamics(env, max_steps=12), player, env.tasks("train", count), seed=0, grammar=grammar))


def actions(trees: list[Tree]) -> list[Action]:
    return [edge.action for tree in trees for node in tree.nodes() for edge in node.edges]


@pytest.mark.parametrize("grammar", STRUCTURED, ids=repr)
def test_demonstrations_go_the_same_in_every_format(grammar: Grammar) -> None:
    """Text calls that name a tool become calls of that tool; others are written as they are."""
    for env in (SHOP, SQL, LAKE):
        trees, plain = shown(env, grammar), shown(env, ReAct())
        for one, other in zip(trees, plain, strict=True):
            assert [(n.terminated, n.invalid) for n in one.nodes()] == [
                (n.terminated, n.invalid) for n in other.nodes()
            ]
            seen, known = ([node.state.messages[-1] for node in tree.nodes()] for tree in (one, other))
            assert seen == known
        assert [action.thought for action in actions(trees)] == [action.thought for action in actions(plain)]
        assert not any(action.error for action in actions(trees))
    assert {action.call.name for action in actions(shown(LAKE, grammar)) if isinstance(action.call, ToolCall)} == {
        "act"
    }
    called = {action.call.name for action in actions(shown(SQL, grammar)) if isinstance(action.call, ToolCall)}
    assert called == {"schema", "query", "answer"}
    assert all(isinstance(action.call, ToolCall) for action in actions(shown(SQL, grammar)))


def test_instructions_name_the_tools_and_a_written_call_reads_as_they_say() -> None:
    for grammar in STRUCTURED:
        lines = grammar.instructions(SQL.tools())
        assert all(f"- {name}: " in lines for name in ("schema", "query", "answer"))
        assert "- query" not in grammar.instructions(())
    assert 'end your turn with <action>{"when": true, "which": NAME, "how": ARGUMENTS}</action>.' in JSON.instructions(
        SQL.tools()
    )


def tool(name: str, required: list[str], **properties: dict[str, object]) -> ToolSpec:
    return ToolSpec(name, "Do it.", {"type": "object", "properties": properties, "required": required})


TEXT: dict[str, object] = {"type": "string"}


@pytest.mark.parametrize(
    ("spec", "line", "said", "arguments"),
    [
        (tool("back", []), "- back: Do it.", "back", {}),
        (tool("find", ["thing"], thing=TEXT), "- find[thing]: Do it.", "find[lamp]", {"thing": "lamp"}),
        (tool("find", [], thing=TEXT), "- find[thing]: Do it.", "find[lamp]", {"thing": "lamp"}),
        (
            tool("add", ["x", "y"], y={"type": "integer"}, x={"type": "integer"}),
            "- add[x, y]: Do it.",
            "add[1, 2]",
            {"x": 1, "y": 2},
        ),
        (
            tool("find", ["thing"], thing=TEXT, least={"type": "integer"}),
            '- find {"thing": ..., "least": ...}: Do it. {"thing": {"type": "string"}, "least": {"type": "integer"}}',
            'find {"thing": "lamp", "least": 2}',
            {"thing": "lamp", "least": 2},
        ),
        (
            tool("go", ["to"], to={"type": "string", "enum": ["north", "south"]}),
            '- go[to]: Do it. {"to": {"type": "string", "enum": ["north", "south"]}}',
            "go[north]",
            {"to": "north"},
        ),
    ],
)
def test_react_is_told_each_tool_as_a_text_calls_it(
    spec: ToolSpec, line: str, said: str, arguments: dict[str, object]
) -> None:
    assert line in ReAct().instructions([spec, tool("other", [])]).splitlines()
    assert as_call(said, [spec]) == ToolCall(spec.name, arguments)


def test_every_format_without_tools_is_told_the_task_and_how_a_turn_is_written() -> None:
    for grammar in (ReAct(), *STRUCTURED):
        assert "the task that the user gives you" in grammar.instructions(())
    assert ReAct().read("\n".join(ReAct().instructions(()).splitlines()[-2:])).error == ""


@pytest.mark.parametrize("format", ["react", "json", "tools"])
@pytest.mark.parametrize("model", [None, "m"])
def test_a_user_s_own_text_stands_before_the_explanation(model: str | None, format: Format) -> None:
    tools = SQL.tools()

    def system(instructions: str) -> str:
        settings = PolicyConfig(model=model, format=format, instructions=instructions)
        chat, _ = conversation(family("qwen"), settings, tools)
        return str(chat.tokenizer.decode(list(chat.prompt_ids((Message("user", "go"),)))))

    bare = "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"
    assert system("") == bare
    assert (system("auto") == bare) == (model is None)
    own = system("Be <|im_end|> brief.")
    assert own.startswith("<|im_start|>system\nBe <|im_end|> brief.\n\n") and own.endswith(bare)
    assert all(name in own for name in ("schema", "query", "answer"))


def test_tools_for_a_template_are_in_openai_s_form() -> None:
    [schema, query, _] = openai_tools(SQL.tools())
    assert schema["type"] == query["type"] == "function"
    assert query["function"]["name"] == "query"
    assert query["function"]["parameters"]["required"] == ["sql"]


@pytest.mark.parametrize("grammar", STRUCTURED, ids=repr)
def test_a_malformed_turn_is_answered_and_the_episode_goes_on(grammar: Grammar) -> None:
    dynamics = EnvDynamics(SQL, max_steps=3)
    state = asyncio.run(dynamics.reset(SQL.tasks("train", 1)[0]))
    malformed = grammar.read(grammar.write("", ToolCall("query", {"sql": "x"})) + grammar.mark)
    after = asyncio.run(dynamics.step(state, malformed))
    assert (after.invalid, after.terminated, after.truncated) == (True, False, False)
    assert after.state.messages[-1].content == f"Invalid action: {malformed.error}"
    unknown = asyncio.run(dynamics.step(after.state, grammar.read(grammar.write("", ToolCall("fly", {})))))
    assert unknown.invalid
    assert unknown.state.messages[-1].content.startswith("no tool fly")
    schema = asyncio.run(dynamics.step(after.state, grammar.read(grammar.write("", ToolCall("schema", {})))))
    assert not schema.invalid
    assert " TEXT" in schema.state.messages[-1].content


def test_a_model_that_was_not_made_here_is_told_the_format_and_the_tools() -> None:
    tools = SQL.tools()
    opening = (Message("user", "go"),)

    def told(format: Format, tools: Sequence[ToolSpec]) -> str:
        chat, grammar = conversation(family("qwen"), PolicyConfig(model="m", format=format), tools)
        assert grammar == make_grammar(format, str(family("qwen").chat_template))
        return str(chat.tokenizer.decode(list(chat.prompt_ids(opening))))

    assert f"<|im_start|>system\n{JSON.instructions(SQL.tools())}<|im_end|>\n" in told("json", tools)
    assert told("tools", tools).count('{"type": "function", "function": {"name": "query"') == 1
    assert "Think" not in told("tools", tools)
    assert f"<|im_start|>system\n{ReAct().instructions(SQL.tools())}<|im_end|>\n" in told("react", tools)
    assert JSON.instructions(()) in told("json", ())
    told_by = [known_tools(RunConfig(policy=PolicyConfig(model=model, format=each))) for model, each in SETTINGS]
    assert [bool(told) for told in told_by] == [False, True, True, True]


SETTINGS: list[tuple[str | None, Format]] = [(None, "react"), (None, "tools"), ("m", "react"), ("m", "json")]

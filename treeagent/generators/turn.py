"""How a turn of the agent writes a thought and a call: as ReAct text, or as the model's own tool calls in JSON.

Each class says one way three times: ``write`` makes the text, ``rules`` are the grammar that constrained decoding
samples by, and ``read`` finds the call, a ``ToolCall`` or plain text. A malformed turn is data: its action carries the
reason as ``error``, which the agent reads next.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import orjson

from treeagent.seams import resolve
from treeagent.types import Action, Message, ToolCall, UserError, only_text

ANY = "(?s:.*)"
"""Regular expression for any text, line breaks included."""
TASK = (
    "You act in an environment to do the task that the user gives you. Each message of yours is one turn; the "
    "environment's answer to it follows."
)
_MOST_NESTED = 100
"""Deepest nesting of a call's arguments that a stored tree can hold."""
BLANKS = "[ \\n]?"
"""Blanks allowed between the parts of a call's JSON. If more were allowed, a weak model could write blanks forever."""
FORMATS: Mapping[str, str] = {
    "react": "treeagent.generators.turn:ReAct",
    "tools": "treeagent.generators.turn:ToolCalls",
}
"""The formats of the core. ``policy.format`` may also name a function of the environment's tools that gives a
``Grammar``, by a plugged-in name or as "module:Name"."""


class Tool(Protocol):
    """A tool of an environment. ``parameters`` is the JSON schema of its arguments."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, object]: ...


class Grammar(Protocol):
    """The format of a turn: how it writes a thought and a call."""

    @property
    def calls(self) -> Literal["text", "native"]:
        """Form of a call: plain text, or the model's own syntax, where the chat template lists the tools."""

    @property
    def mark(self) -> str:
        """The text with which a call begins."""

    def begins_action(self, text: str, *, opened: bool = False) -> bool:
        """Whether this unfinished turn has ended its thought, which the template may have ``opened``."""

    def lead(self, text: str, *, opened: bool, calls: bool) -> str:
        """What leads this unfinished turn into its call, ``mark`` included; ``calls``: whether there are tools."""

    def instructions(self, tools: Sequence[Tool]) -> str:
        """The system message that explains the format and the tools to a model that was not trained on them."""

    def write(self, thought: str, call: str | ToolCall) -> str: ...

    def rules(self, tools: Sequence[Tool], mark_term: Callable[[str], str]) -> str:
        """Rules of a well-formed ``turn`` in llguidance's dialect of Lark: it calls a tool by its schema, or says a
        text if there are none. ``mark_term`` writes a mark as a term: quoted, or as a special token (``<[7]>``)."""

    def read(self, text: str, token_ids: Sequence[int] = (), logprobs: Sequence[float] = ()) -> Action:
        """The action in ``text``. Its ``error`` is set if the text does not hold exactly one call."""


def make_grammar(name: str, chat_template: str = "", tools: Sequence[Tool] = ()) -> Grammar:
    """The grammar of ``policy.format``. If the model's ``chat_template`` writes tools, "tools" must be its syntax."""
    kind = resolve("policy.format", name, FORMATS)
    grammar: Grammar = kind() if name in FORMATS else kind(tools)
    is_hermes = "<tool_call>" in chat_template and not re.search(r"<parameter=|<arg_key>|<function=", chat_template)
    if name == "tools" and tools and re.search(r"\btools\b", chat_template) and not is_hermes:
        raise UserError(
            "the model's chat template writes tool calls in another syntax than the JSON of policy.format=tools: set "
            'policy.format to react, or to a format of this syntax ("module:Name")'
        )
    return grammar


def openai_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools in OpenAI's form, as chat templates take them."""
    told = [{"name": each.name, "description": each.description, "parameters": dict(each.parameters)} for each in tools]
    return [{"type": "function", "function": each} for each in told]


def openai_content(message: Message) -> str | list[dict[str, Any]]:
    """The content of a message in OpenAI's form: its text or, if it has images, a list of parts."""
    images = [{"type": "image_url", "image_url": {"url": each}} for each in message.images]
    return [{"type": "text", "text": message.content}, *images] if images else message.content


@dataclass(frozen=True, slots=True)
class ReAct:
    """``Thought: ...`` on the first line, ``Action: ...`` on the last (Yao et al. 2023). A subclass may name other
    lines."""

    calls: ClassVar[Literal["text"]] = "text"
    mark: ClassVar[str] = "Action:"
    thoughts: ClassVar[Mapping[str, str]] = {"Thought:": "what you think"}
    """The marks of the thought's lines, each with what it says to a model. The last ones begin the lines of a thought
    that has fewer."""

    def begins_action(self, text: str, *, opened: bool = False) -> bool:
        return self._begin().search(_said(text, opened).lstrip()) is not None

    def lead(self, text: str, *, opened: bool, calls: bool) -> str:
        if _in_thought(text, opened):
            return f"</think>{self.mark}"
        return f"\n{self.mark}" if text and text[-1] != "\n" and not text.endswith("</think>") else self.mark

    def instructions(self, tools: Sequence[Tool]) -> str:
        lines = (f"{mark} {what}" for mark, what in (*self.thoughts.items(), (self.mark, "what you do")))
        turn = ("Write each turn in this form:", *lines)
        calls = ("An action calls one of these tools:", *map(_as_text, tools)) if tools else ()
        if only_text([tool.parameters for tool in tools]):
            schema = arguments_of(tools[0])[0]
            calls = (f"What you do: {tools[0].description} {written_json(schema)}",)
        return "\n".join((TASK, *turn, *calls))

    def write(self, thought: str, call: str | ToolCall) -> str:
        action = f"{self.mark} {call if isinstance(call, str) else f'{call.name} {written_json(call.arguments)}'}"
        lines = thought.split("\n", len(self.thoughts) - 1) if thought else []
        marks = list(self.thoughts)[len(self.thoughts) - len(lines) :]
        return "\n".join((*(f"{mark} {line}" for mark, line in zip(marks, lines, strict=True)), action))

    def rules(self, tools: Sequence[Tool], mark_term: Callable[[str], str]) -> str:
        """An optional thought and an action, of one line each: a call as ``_as_text`` writes it, or with JSON.
        SentencePiece begins every text with a blank, so a turn may."""
        line, thought = f"& ~/{ANY}{self.mark}{ANY}/", ""
        for mark in self.thoughts:
            thought = f'({thought}"{mark} " THOUGHT "\\n")? '
        rules = [f'turn: / ?/ {thought}"{self.mark} " call', rf"THOUGHT: /[^\n]*/ {line}"]
        ways, only = list[str](), only_text([tool.parameters for tool in tools])
        if not tools or only:
            rule = _bracketed(arguments_of(tools[0])[0][only], _TEXT) if only else _TEXT
            rules.append(f"SAID: ({rule}) {line}")
            ways.append("SAID")
        for index, tool in enumerate(tools):
            found, required = arguments_of(tool)
            keys = list(found) if len(found) == 1 else list(required) if set(found) == set(required) else []
            inner = [_bracketed(found[key], _TEXT if len(keys) == 1 else _WORDS) for key in keys]
            if not found:
                ways.append(json.dumps(tool.name))
            elif inner and all(inner):
                # A single terminal, because the argument itself may contain brackets.
                rule = f'{json.dumps(f"{tool.name}[")} {_COMMA.join(inner)} "]"'
                rules.append(f"CALL_{index}: ({rule}) {line}")
                ways.append(f"CALL_{index}")
            ways.append(f"{json.dumps(f'{tool.name} ')} arguments_{index}")
            rules.append(_schema_rule(index, tool, "[ ]?"))
        return "\n".join((*rules, f"call: {' | '.join(ways)}"))

    def read(self, text: str, token_ids: Sequence[int] = (), logprobs: Sequence[float] = ()) -> Action:
        *heads, call = self._begin().split(text.rpartition("</think>")[2].lstrip())  # a thought may draft an action
        if not heads:
            *heads, call = self._begin().split(text.lstrip())
        thought = self._thought(text.removesuffix(call).removesuffix(self.mark))
        call = call.strip()
        error = ""
        if not heads:
            call, thought, error = "", text.strip(), f"there is no line that starts with {self.mark!r}"
        elif len(heads) > 1:
            call, error = "", "there is more than one action"
        elif not call:
            error = f"nothing follows {self.mark!r}"
        elif "\n" in call:
            call, error = "", "the action is longer than one line"
        return Action(text, call, thought, tuple(token_ids), tuple(logprobs), error)

    def _begin(self) -> re.Pattern[str]:
        """The beginning of an action: at the start of a line, or directly after a thought in ``<think>`` tags."""
        return re.compile(f"(?:^|(?<=</think>)){self.mark}", re.MULTILINE)

    def _thought(self, head: str) -> str:
        """The thought in the text before the action, without its marks."""
        thinking, _, said = head.rpartition("</think>")
        said = re.sub(f"^({'|'.join(self.thoughts)}) *", "", _bare(said), count=len(self.thoughts), flags=re.MULTILINE)
        return "\n".join(filter(None, (_bare(thinking), said.strip())))


_COMMA = ' ", " '
_TEXT = r"/[^\n]*[^\s][^\n]*/"
_WORDS = r"/[^\n,]*[^\s,][^\n,]*/"
"""Text arguments between the brackets of a call: ``_TEXT`` is for a tool with one argument, ``_WORDS`` for several."""
_SCALARS = {"integer": "/-?(0|[1-9][0-9]{0,14})/", "number": r"/-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,14})?/"}
"""Rules of numbers between the brackets of a call."""


def _bracketed(schema: object, text: str) -> str:
    """The rule of an argument between brackets, ``text`` if it is any text; empty if it must be written as JSON."""
    if not isinstance(schema, Mapping):
        return ""
    if isinstance(listed := schema.get("enum"), list | tuple) and listed and all(isinstance(e, str) for e in listed):
        return f"({' | '.join(map(json.dumps, listed))})"
    if set(schema) - {"type", "title", "description"}:  # further constraints, such as bounds of a number
        return ""
    kind = schema.get("type")
    return text if kind == "string" else _SCALARS.get(str(kind), "")


def _as_text(tool: Tool) -> str:
    """A line on a tool and its call as ``envs/calls.py`` reads it: ``name[argument]``, or with JSON if arguments are
    optional."""
    schemas, required = arguments_of(tool)
    if not schemas:
        call = tool.name
    elif len(schemas) == 1 or set(schemas) == set(required):
        call = f"{tool.name}[{', '.join(required if len(schemas) > 1 else schemas)}]"
    else:
        call = f"{tool.name} {{{', '.join(f'{written_json(key)}: ...' for key in schemas)}}}"
    is_constrained = any(isinstance(schema, dict) and set(schema) - {"type", "title"} for schema in schemas.values())
    return f"- {call}: {tool.description}{f' {written_json(schemas)}' if is_constrained or call[-1] == '}' else ''}"


def _in_thought(text: str, opened: bool = False) -> bool:
    """Whether an unfinished turn is still within ``<think>`` tags, which the template may have ``opened``."""
    return (opened or text.lstrip().startswith("<think>")) and "</think>" not in text


def _said(text: str, opened: bool = False) -> str:
    """The text after the first ``</think>``; empty while the thought is unfinished."""
    return "" if _in_thought(text, opened) else text.partition("</think>")[2] if "</think>" in text else text


def _bare(thinking: str) -> str:
    return thinking.replace("<think>", "").replace("</think>", "").strip()


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """A model's own tool calls in the JSON of Hermes, as Qwen2.5, Qwen3 and many others write them::

        <tool_call>
        {"name": ..., "arguments": {...}}
        </tool_call>

    A turn makes one call after a thought in ``<think>`` tags or plain text; without a call it says a text.
    """

    calls: ClassVar[Literal["native"]] = "native"
    mark: ClassVar[str] = "<tool_call>"
    end: ClassVar[str] = "</tool_call>"
    """The text with which a call ends; empty if it goes on to the end of the turn."""
    spelling: ClassVar[tuple[str, str, str]] = ('{"name": ', ', "arguments": ', "}")
    """The text before, between and after the name and the arguments of a call."""
    frame: ClassVar[tuple[str, str]] = ("<tool_call>\n", "\n</tool_call>")
    """The text around that."""
    reserved: ClassVar[tuple[str, ...]] = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]")
    """Marks that a turn without a tool call must not contain."""

    def instructions(self, tools: Sequence[Tool]) -> str:
        if not tools:
            return f"{TASK}\nThink in <think> tags, then say your action."
        lines = [f"- {tool.name}: {tool.description} {written_json(tool.parameters)}" for tool in tools]
        how = f"Think in <think> tags, then call a tool:\n{self.example()}"
        return "\n".join((TASK, how, "The tools, with the JSON schema of their arguments:", *lines))

    def example(self) -> str:
        """How a call is written, with names in capitals for its parts."""
        return self.spelt("NAME", "ARGUMENTS")

    def write(self, thought: str, call: str | ToolCall) -> str:
        text = call if isinstance(call, str) else self.write_call(call)
        return f"<think>\n{thought}\n</think>\n\n{text}" if thought else text

    def write_call(self, call: ToolCall) -> str:
        return self.spelt(written_json(call.name), written_json(call.arguments))

    def spelt(self, name: str, arguments: str) -> str:
        (before, between, after), (begin, end) = self.spelling, self.frame
        return f"{begin}{before}{name}{between}{arguments}{after}{end}"

    def rules(self, tools: Sequence[Tool], mark_term: Callable[[str], str]) -> str:
        if tools:
            return self.call_rules(tools, mark_term)
        marks = "|".join(map(re.escape, self.reserved)).replace("/", r"\/")
        rule = rf"/\s*[^\s]{ANY}/ & ~/\s*<think>{ANY}|{ANY}({marks}){ANY}/"
        return "\n".join(("turn: thinking? SAID", thinking_rule(mark_term), f"SAID: {rule}"))

    def call_rules(self, tools: Sequence[Tool], mark_term: Callable[[str], str]) -> str:
        return after_thought_rules(named_rules(tools, self.spelling), mark_term, self.mark, self.end)

    def read(self, text: str, token_ids: Sequence[int] = (), logprobs: Sequence[float] = ()) -> Action:
        said, call, error = _said(text), "", ""
        begin = self.begin(said)
        thought = _bare(text[: len(text) - len(said) + max(begin, 0)])
        try:
            if begin >= 0:
                return Action(text, self.read_call(said), thought, tuple(token_ids), tuple(logprobs))
            if any(mark in said for mark in self.reserved):
                error = "this is no tool call of your format"
            elif not (call := said.strip()):
                error = "after the thought there is neither a tool call nor a text"
        except (ValueError, RecursionError) as unreadable:
            error = str(unreadable)
        return Action(text, call, thought, tuple(token_ids), tuple(logprobs), error)

    def read_call(self, text: str) -> ToolCall:
        """The call in a text that holds its beginning. A ValueError is shown to the agent."""
        inner = enclosed(text, self.mark, self.end)
        try:
            return named_call(read_json(inner), "arguments")
        except ValueError:
            if self.mark in inner:
                raise ValueError(f"there is more than one {self.mark}") from None
            raise

    def begin(self, text: str) -> int:
        """The index at which a call begins in the text after the ``<think>`` tags; -1 if there is no call."""
        return text.find(self.mark)

    def begins_action(self, text: str, *, opened: bool = False) -> bool:
        return self.begin(_said(text, opened)) >= 0

    def lead(self, text: str, *, opened: bool, calls: bool) -> str:
        thinks = _in_thought(text, opened)
        if not calls:
            return "</think>\n" if thinks else ""
        return f"</think>\n{self.mark}" if thinks else f"\n{self.mark}" if text else self.mark


def named_rules(tools: Sequence[Tool], spelling: tuple[str, str, str]) -> list[str]:
    """The rule ``call`` of a tool's name and its arguments in JSON, and the rules that it uses."""
    before, between, after = spelling
    ways = [
        f"{json.dumps(before + written_json(tool.name) + between)} arguments_{index} {json.dumps(after)}"
        for index, tool in enumerate(tools)
    ]
    return [f"call: {' | '.join(ways)}", *(_schema_rule(index, tool, BLANKS) for index, tool in enumerate(tools))]


def _schema_rule(index: int, tool: Tool, blanks: str) -> str:
    """The rule of a tool's arguments, with ``blanks`` (a regular expression) between the parts."""
    # Lenient: an annotation that llguidance does not know, such as a format "path", constrains nothing.
    guidance = {"whitespace_pattern": blanks, "lenient": True}
    schema = {"type": "object", "x-guidance": guidance} | dict(tool.parameters)
    return f"arguments_{index}: %json {written_json(schema)}"


def after_thought_rules(calls: Sequence[str], mark_term: Callable[[str], str], mark: str, end: str = "") -> str:
    """Rules of a turn that has a thought, in plain text or in tags, and then a call between ``mark`` and ``end``."""
    outside, begin = rf"& ~/\s*<think>{ANY}/", mark_term(mark)
    rest = rf"/\n?/ call /\n?/ {mark_term(end)}" if end else "/ ?/ call"
    if begin.startswith("<["):
        turn = [f"turn: thinking? THOUGHT {begin} {rest}", f"THOUGHT: /{ANY}/ {outside}"]
    else:
        turn = [f"turn: thinking? thought {rest}", f"thought[lazy]: /{ANY}{re.escape(mark)}/ {outside}"]
    return "\n".join((*turn, thinking_rule(mark_term), *calls))


def thinking_rule(mark_term: Callable[[str], str]) -> str:
    begin, end = mark_term("<think>"), mark_term("</think>")
    if begin.startswith("<["):
        return rf"thinking: /[ \n]?/ {begin} /{ANY}/ {end}"
    return rf"thinking[lazy]: /[ \n]?<think>{ANY}<\/think>/"


def enclosed(text: str, mark: str, end: str) -> str:
    """What is between the first ``mark`` and the last ``end``, so that an argument may contain either."""
    inner, closed, after = text.partition(mark)[2].rpartition(end)
    if not closed:
        raise ValueError(f"{mark} is not closed")
    if after.strip():
        raise ValueError(f"something follows {end}")
    return inner


def named_call(value: object, key: str) -> ToolCall:
    """The call in a JSON object of a name and, under ``key``, the arguments."""
    if not isinstance(value, dict) or set(value) != {"name", key}:
        raise ValueError(f"write a JSON object of name, {key}")
    return tool_call(value["name"], value[key])


def tool_call(name: object, arguments: object) -> ToolCall:
    if not isinstance(name, str) or not name:
        raise ValueError("the tool must be named by a text")
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments of {name} must be an object")
    return ToolCall(name, arguments)


def read_json(text: str) -> object:
    """Parse JSON; refuse NaN and values that a stored tree cannot hold."""
    try:
        value = json.loads(text)
        orjson.dumps(value)  # refuses integers beyond 64 bits and unpaired surrogates
        orjson.loads(text)  # refuses NaN and numbers that are too large
    except json.JSONDecodeError as error:
        raise ValueError(f"the call is no JSON: {error}") from error
    except orjson.JSONEncodeError as error:
        raise ValueError(f"the call cannot be passed on: {error}") from error
    if _depth(value) > _MOST_NESTED:
        raise ValueError(f"the call is nested more than {_MOST_NESTED} deep")
    return value


def _depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=-1)


def written_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def arguments_of(tool: Tool) -> tuple[Mapping[str, object], Sequence[str]]:
    """The schema of each argument, keyed by its name, and the names of the required arguments."""
    schemas, required = tool.parameters.get("properties"), tool.parameters.get("required")
    return schemas if isinstance(schemas, dict) else {}, required if isinstance(required, list | tuple) else ()

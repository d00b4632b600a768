"""A model's own tool calls, in the syntax that its chat template shows: JSON, or tags around each argument."""

import json
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import orjson

from treeagent.generators.grammar import (
    ANY,
    TASK,
    AfterThinking,
    Tool,
    after_thought_rules,
    arguments_of,
    call_rules,
    enclosed,
    json_between,
    json_rule,
    named_call,
    read_json,
    thinking_rule,
    tool_call,
    tool_listing,
    written_json,
)
from treeagent.types import ToolCall

Syntax = Literal["hermes", "llama", "mistral"]
_MARKS: Mapping[Syntax, str] = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama": '{"name"'}
_BEGINNINGS: Mapping[Syntax, re.Pattern[str]] = {
    "hermes": re.compile("<tool_call>"),
    "mistral": re.compile(r"\[TOOL_CALLS\]"),
    "llama": re.compile(r'^(<\|python_tag\|>\s*)?\{\s*"name"', re.MULTILINE),
}
_SPELLINGS: Mapping[Syntax, tuple[str, str, str]] = {
    "hermes": ('{"name": ', ', "arguments": ', "}"),
    "mistral": ('[{"name": ', ', "arguments": ', "}]"),
    "llama": ('{"name": ', ', "parameters": ', "}"),
}
"""The text before, between and after the name and the arguments of a call."""
_RESERVED = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]")
"""Marks that a turn without a tool call must not contain."""


class NativeCalls(AfterThinking):
    """Base class of the syntaxes: one call a turn, after a thought in ``<think>`` tags or in plain text. A turn without
    a call says a text."""

    calls: ClassVar[Literal["native"]] = "native"

    @abstractmethod
    def _call_rules(self, tools: Sequence[Tool], mark_term: Callable[[str], str]) -> str:
        """Rules of a turn that calls a tool."""

    @abstractmethod
    def _write_call(self, call: ToolCall) -> str: ...

    @abstractmethod
    def _read_call(self, text: str) -> ToolCall:
        """The call in the text after the ``<think>`` tags, which holds its beginning."""

    def instructions(self, tools: Sequence[Tool]) -> str:
        """As for ``Grammar``, for a chat template that does not write the tools."""
        if not tools:
            return f"{TASK}\nThink in <think> tags, then say your action."
        return "\n".join((TASK, f"Think in <think> tags, then call a tool:\n{self._example()}", *tool_listing(tools)))

    @abstractmethod
    def _example(self) -> str:
        """How a call is written, with names in capitals for its parts."""

    def rules(self, tools: Sequence[Tool], mark_term: Callable[[str], str]) -> str:
        if tools:
            return self._call_rules(tools, mark_term)
        rule = rf"/\s*[^\s]{ANY}/ & ~/{'|'.join(self._unsaid())}/"
        return "\n".join(("turn: thinking? SAID", thinking_rule(mark_term), f"SAID: {rule}"))

    def _unsaid(self) -> list[str]:
        """Regular expressions of texts that a turn without a call must not be."""
        marks = "|".join(map(re.escape, _RESERVED)).replace("/", r"\/")
        return [rf"\s*<think>{ANY}", f"{ANY}({marks}){ANY}"]

    def write(self, thought: str, call: str | ToolCall) -> str:
        text = call if isinstance(call, str) else self._write_call(call)
        return f"<think>\n{thought}\n</think>\n\n{text}" if thought else text

    def _call(self, text: str) -> str | ToolCall:
        """As for ``AfterThinking``. A turn without a tool call says its text."""
        if self._begin(text) >= 0:
            return self._read_call(text)
        if any(mark in text for mark in _RESERVED):
            raise ValueError("this is no tool call of your format")
        if not text.strip():
            raise ValueError("after the thought there is neither a tool call nor a text")
        return text.strip()


@dataclass(frozen=True, slots=True)
class ToolCalls(NativeCalls):
    """Calls in JSON.

    ``hermes`` (Qwen2.5, Qwen3 and many others): ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.
    ``llama``: ``{"name": ..., "parameters": {...}}`` from the start of a line to the end of the turn. ``mistral``:
    ``[TOOL_CALLS] [{"name": ..., "arguments": {...}}]`` or ``[TOOL_CALLS]name[ARGS]{...}``.
    """

    syntax: Syntax = "hermes"

    @property
    def mark(self) -> str:
        return _MARKS[self.syntax]

    def _example(self) -> str:
        return self._spelt("NAME", "ARGUMENTS")

    def _call_rules(self, tools: Sequence[Tool], mark_term: Callable[[str], str]) -> str:
        spelling = _SPELLINGS[self.syntax]
        match self.syntax:
            case "hermes":
                return after_thought_rules(call_rules(tools, spelling), mark_term, self.mark, "</tool_call>")
            case "mistral":
                return after_thought_rules(call_rules(tools, spelling, mark_term("[ARGS]")), mark_term, self.mark)
            case "llama":
                call = call_rules(tools, spelling)
                return "\n".join((r"turn: thinking? /\n{0,2}/ call", thinking_rule(mark_term), *call))

    def _unsaid(self) -> list[str]:
        return [*NativeCalls._unsaid(self), *([rf'{ANY}\{{\s*"name"{ANY}'] if self.syntax == "llama" else [])]

    def _write_call(self, call: ToolCall) -> str:
        return self._spelt(written_json(call.name), written_json(call.arguments))

    def _spelt(self, name: str, arguments: str) -> str:
        before, between, after = _SPELLINGS[self.syntax]
        call = f"{before}{name}{between}{arguments}{after}"
        match self.syntax:
            case "hermes":
                return f"<tool_call>\n{call}\n</tool_call>"
            case "mistral":
                return f"[TOOL_CALLS] {call}"
            case "llama":
                return call

    def _begin(self, text: str) -> int:
        found = _BEGINNINGS[self.syntax].search(text)
        return -1 if found is None else found.start()

    def _read_call(self, text: str) -> ToolCall:
        begin = self._begin(text)
        match self.syntax:
            case "hermes":
                return named_call(json_between(text, self.mark, "</tool_call>"), "arguments")
            case "mistral":
                return _mistral(text[begin:].removeprefix(self.mark).strip())
            case "llama":
                return named_call(read_json(text[begin:].removeprefix("<|python_tag|>")), "parameters")


def _mistral(text: str) -> ToolCall:
    if text.startswith("["):
        calls = read_json(text)
        if not isinstance(calls, list) or len(calls) != 1:
            raise ValueError("a turn makes one tool call")
        return named_call(calls[0], "arguments")
    name, _, arguments = text.partition("[ARGS]")
    return tool_call(name.strip(), read_json(arguments))


_FUNCTION, _PARAMETER, _VALUE_END = "<function=", "<parameter=", "</parameter>"
_NEXT = re.compile(r"\s*+(?=<parameter=|\Z)")
"""What follows an argument: the next one, or the end of the call."""
_END = re.compile(r"</function>\s*</tool_call>")
_TEXT_RULE = r"/(?s:.*)\n<\/parameter>\n/"
_BOOLEANS: Mapping[str, str] = {"True": "true", "False": "false", "None": "null"}
"""Chat templates write these values as Python does, so models do as well."""


@dataclass(frozen=True, slots=True)
class TagCalls(NativeCalls):
    """Calls with a tag around each argument (Qwen3-Coder, Qwen3.5)::

        <tool_call>
        <function=NAME>
        <parameter=KEY>
        VALUE
        </parameter>
        </function>
        </tool_call>

    An argument is its plain text if its type is ``string``, and JSON otherwise. Without a type, it is JSON if it can be
    read as JSON of another type than text.
    """

    mark: ClassVar[str] = "<tool_call>"
    schemas: Mapping[str, Mapping[str, object]] = field(default_factory=dict[str, Mapping[str, object]])
    """The schema of each argument of each tool: tool -> argument -> schema."""

    @classmethod
    def of(cls, tools: Sequence[Tool]) -> "TagCalls":
        """The syntax for calls of these tools."""
        return cls({tool.name: arguments_of(tool)[0] for tool in tools})

    def _example(self) -> str:
        return self._write_call(ToolCall("NAME", {"KEY": "VALUE"}))

    def _call_rules(self, tools: Sequence[Tool], mark_term: Callable[[str], str]) -> str:
        ways, others = list[str](), list[str]()
        for number, tool in enumerate(tools):
            schemas, required = arguments_of(tool)
            parts = list[str]()
            for place, (key, schema) in enumerate(schemas.items()):
                rule, defined = _value_rule(f"value_{number}_{place}", schema, tool)
                opening = json.dumps(f"<parameter={key}>\n")
                parts.append(f"{opening} {rule}" if key in required else f"({opening} {rule})?")
                others += defined
            ways.append(" ".join((json.dumps(f"<function={tool.name}>\n"), *parts, '"</function>"')))
        return after_thought_rules([f"call: {' | '.join(ways)}", *others], mark_term, self.mark, "</tool_call>")

    def _write_call(self, call: ToolCall) -> str:
        texts = (
            (key, value if isinstance(value, str) else written_json(value)) for key, value in call.arguments.items()
        )
        inner = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts)
        return f"<tool_call>\n<function={call.name}>\n{inner}</function>\n</tool_call>"

    def _begin(self, text: str) -> int:
        return text.find(self.mark)

    def _read_call(self, text: str) -> ToolCall:
        inside = enclosed(text, self.mark, "</tool_call>")
        if _END.search(inside):
            raise ValueError("a turn makes one tool call")
        inside = inside.strip()
        name, opened, inner = inside.removeprefix(_FUNCTION).removesuffix("</function>").partition(">")
        if not (inside.startswith(_FUNCTION) and inside.endswith("</function>") and opened):
            raise ValueError("write <function=NAME>, its parameters and </function>")
        schemas, arguments = self.schemas.get(name, {}), dict[str, object]()
        for key, value in _parameters(inner.strip()):
            if key in arguments:
                raise ValueError("a key is given twice")
            arguments[key] = _read_value(key, value, schemas.get(key))
        return tool_call(name, arguments)


def _parameters(text: str) -> Iterator[tuple[str, str]]:
    """The key and the text of each argument. A text goes on to the first end of a tag that another tag or the end of
    the call follows, so it may contain such an end."""
    at = 0
    while at < len(text):
        begin, following = text.find(">", at), None
        end = text.find(_VALUE_END, begin)
        while end >= 0 and (following := _NEXT.match(text, end + len(_VALUE_END))) is None:
            end = text.find(_VALUE_END, end + 1)
        if not text.startswith(_PARAMETER, at) or begin < 0 or following is None:
            raise ValueError("write each argument as <parameter=KEY>, its value and </parameter>")
        yield text[at + len(_PARAMETER) : begin], text[begin + 1 : end].removeprefix("\n").removesuffix("\n")
        at = following.end()


def _value_rule(name: str, schema: object, tool: Tool) -> tuple[str, list[str]]:
    """A term for an argument's value and the end of its tag, and the rules that the term needs.

    Args:
        name: of a rule that may be defined.
    """
    end = json.dumps("\n</parameter>\n")
    listed = schema.get("enum") if isinstance(schema, Mapping) else None
    if isinstance(listed, list | tuple) and listed and all(isinstance(each, str) for each in listed):
        return f"({' | '.join(map(json.dumps, listed))}) {end}", []
    types = _types(schema)
    if not types or "string" in types:
        return name, [f"{name}[lazy]: {_TEXT_RULE}"]
    shared = {"$defs": tool.parameters["$defs"]} if "$defs" in tool.parameters else {}
    return f"{name} {end}", [f"{name}: {json_rule(shared | dict(schema))}" if isinstance(schema, Mapping) else ""]


def _types(schema: object) -> tuple[str, ...]:
    """The types that a schema names; none if it names none, as with ``anyOf``."""
    named = schema.get("type") if isinstance(schema, Mapping) else None
    return (named,) if isinstance(named, str) else tuple(map(str, named)) if isinstance(named, list | tuple) else ()


def _read_value(key: str, text: str, schema: object) -> object:
    """The value of an argument by its schema.

    Raises:
        ValueError: the argument is no text, and what is written is no JSON.
    """
    types = _types(schema)
    if types == ("string",):
        orjson.dumps(text)  # refuses unpaired surrogates
        return text
    try:
        value = read_json(_BOOLEANS.get(text, text))
    except ValueError as error:
        if types and "string" not in types:
            raise ValueError(f"the argument {key} is no {' or '.join(types)}: {error}") from error
        orjson.dumps(text)
        return text
    return text if isinstance(value, str) and (not types or "string" in types) else value

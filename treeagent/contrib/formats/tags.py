"""Tool calls with a tag around each argument, as Qwen3-Coder and Qwen3.5 write them."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treeagent.envs.calls import fits, json_types, read_value
from treeagent.generators.turn import (
    BLANKS,
    Tool,
    ToolCalls,
    after_thought_rules,
    arguments_of,
    enclosed,
    read_json,
    tool_call,
    written_json,
)
from treeagent.types import ToolCall

VALUE_END = "\n</parameter>\n"
"""What follows the value of an argument."""
_FUNCTION, _PARAMETER, _CLOSE = "<function=", "<parameter=", "</parameter>"
_NEXT = re.compile(r"\s*+(?=<parameter=|\Z)")
"""What follows an argument: the next one, or the end of the call."""
_END = re.compile(r"</function>\s*</tool_call>")
_TEXT_RULE = r"/(?s:.*)\n<\/parameter>\n/ & ~/(<\/parameter>(?s:.*)|(?s:.*)<\/parameter>\s*<(?s:.*))/"
"""A text and the end of its tag. It neither begins with such an end nor holds one that a tag follows, because reading
would end there."""
_CONSTANTS: Mapping[str, str] = {"True": "true", "False": "false", "None": "null"}
"""Chat templates write these values as Python does, so models do as well."""


@dataclass(frozen=True, slots=True)
class TagCalls(ToolCalls):
    """Calls with a tag around each argument::

        <tool_call>
        <function=NAME>
        <parameter=KEY>
        VALUE
        </parameter>
        </function>
        </tool_call>

    A value is read by its schema, as one between brackets is (``envs.calls.read_value``).
    """

    tools: Sequence[Tool] = ()
    """The tools that are called. A value of a tool that is not among them is JSON if it can be read as such."""

    def example(self) -> str:
        return self.write_call(ToolCall("NAME", {"KEY": "VALUE"}))

    def call_rules(self, tools: Sequence[Tool], mark_term: Callable[[str], str]) -> str:
        ways, others = list[str](), [f"text[lazy]: {_TEXT_RULE}", f'any: "{_PARAMETER}" /[^<>\\n]+/ ">\\n" text']
        for number, tool in enumerate(tools):
            schemas, required = arguments_of(tool)
            parts = list[str]()
            for place, key in enumerate(dict.fromkeys((*schemas, *required))):
                value, defined = _value_rule(f"value_{number}_{place}", schemas.get(key, True), tool.parameters)
                opening = json.dumps(f"{_PARAMETER}{key}>\n")
                parts.append(f"{opening} {value}" if key in required else f"({opening} {value})?")
                others += defined
            parts += ["any*"] if _takes_others(tool.parameters) else []
            ways.append(" ".join((json.dumps(f"{_FUNCTION}{tool.name}>\n"), *parts, '"</function>"')))
        return after_thought_rules([f"call: {' | '.join(ways)}", *others], mark_term, self.mark, self.end)

    def write_call(self, call: ToolCall) -> str:
        texts = (
            (key, value if isinstance(value, str) else written_json(value)) for key, value in call.arguments.items()
        )
        inner = "".join(f"{_PARAMETER}{key}>\n{text}{VALUE_END}" for key, text in texts)
        return f"<tool_call>\n{_FUNCTION}{call.name}>\n{inner}</function>\n</tool_call>"

    def read_call(self, text: str) -> ToolCall:
        inside = enclosed(text, self.mark, self.end)
        if _END.search(inside):
            raise ValueError("a turn makes one tool call")
        inside = inside.strip()
        name, opened, inner = inside.removeprefix(_FUNCTION).removesuffix("</function>").partition(">")
        if not (inside.startswith(_FUNCTION) and inside.endswith("</function>") and opened):
            raise ValueError("write <function=NAME>, its parameters and </function>")
        parameters = next((tool.parameters for tool in self.tools if tool.name == name), {})
        arguments = dict[str, object]()
        schemas = parameters.get("properties")
        for key, text_value in _arguments(inner.strip()):
            if key in arguments:
                raise ValueError("a key is given twice")
            others = parameters.get("additionalProperties", True)
            schema = schemas.get(key, others) if isinstance(schemas, Mapping) else others
            value = arguments[key] = read_value(_CONSTANTS.get(text_value, text_value), schema, parameters)
            if not fits(value, schema, parameters):
                kinds = " or ".join(sorted(json_types(schema, parameters)))
                raise ValueError(f"the argument {key} is no {kinds}: {text_value[:100]!r}")
            if (
                text_value in _CONSTANTS and value == _CONSTANTS[text_value]
            ):  # "True" is a text where the schema allows no boolean
                arguments[key] = text_value
        read_json(written_json(arguments))  # refuses values that a stored tree cannot hold
        return tool_call(name, arguments)


def _arguments(text: str) -> Iterator[tuple[str, str]]:
    """The key and the text of each argument. A text goes on to the first end of a tag that another tag or the end of
    the call follows, so it may contain such an end."""
    at = 0
    while at < len(text):
        begin, following = text.find(">", at), None
        end = text.find(_CLOSE, begin)
        while end >= 0 and (following := _NEXT.match(text, end + len(_CLOSE))) is None:
            end = text.find(_CLOSE, end + 1)
        if not text.startswith(_PARAMETER, at) or begin < 0 or following is None:
            raise ValueError("write each argument as <parameter=KEY>, its value and </parameter>")
        yield text[at + len(_PARAMETER) : begin], text[begin + 1 : end].removeprefix("\n").removesuffix("\n")
        at = following.end()


def _value_rule(name: str, schema: object, root: Mapping[str, object]) -> tuple[str, list[str]]:
    """A term for an argument's value and the end of its tag, and the rules that the term needs.

    Args:
        name: of a rule that may be defined.
        root: the schema of all arguments, to which references refer.
    """
    listed = schema.get("enum") if isinstance(schema, Mapping) else None
    if isinstance(listed, list | tuple) and listed and all(isinstance(each, str) for each in listed):
        return f"({' | '.join(map(json.dumps, listed))}) {json.dumps(VALUE_END)}", []
    if not isinstance(schema, Mapping) or "string" in json_types(schema, root):
        return "text", []
    definitions: dict[str, Any] = {key: root[key] for key in ("$defs", "definitions") if key in root}
    alone = {"x-guidance": {"whitespace_pattern": BLANKS, "lenient": True}} | definitions | dict(schema)
    return f"{name} {json.dumps(VALUE_END)}", [f"{name}: %json {written_json(alone)}"]


def _takes_others(parameters: Mapping[str, object]) -> bool:
    """Whether a tool takes arguments that "properties" does not list: its schema says so, or combines other schemas,
    which may list more."""
    more = parameters.get("additionalProperties")
    combined = any(key in parameters for key in ("anyOf", "oneOf", "allOf", "$ref"))
    return more not in (None, False) or (combined and more is None)

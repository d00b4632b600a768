"""Tool calls with a tag around each argument, as Qwen3-Coder and Qwen3.5 write them."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from treeagent.generators.grammar import (
    BLANKS,
    Tool,
    after_thought_rules,
    arguments_of,
    enclosed,
    json_rule,
    read_json,
    tool_call,
    written_json,
)
from treeagent.generators.tool_calls import NativeCalls
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
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
_ALL = frozenset(_TYPES)
_PROPERTIES = "#/properties/"
_MOST_REFERENCES = 20
"""Most references and combinations within each other that are followed in a schema."""


@dataclass(frozen=True, slots=True)
class TagCalls(NativeCalls):
    """Calls with a tag around each argument::

        <tool_call>
        <function=NAME>
        <parameter=KEY>
        VALUE
        </parameter>
        </function>
        </tool_call>

    A value is JSON if its schema allows no text. It is a text if the schema allows nothing else. Otherwise it is JSON
    if it can be read as JSON of one of the other types that the schema allows, and else a text.
    """

    mark: ClassVar[str] = "<tool_call>"
    parameters: Mapping[str, Mapping[str, object]] = field(default_factory=dict[str, Mapping[str, object]])
    """The JSON schema of the arguments of each tool, by the tool's name."""

    @classmethod
    def of(cls, tools: Sequence[Tool]) -> "TagCalls":
        """The syntax for calls of these tools."""
        return cls({tool.name: tool.parameters for tool in tools})

    @classmethod
    def of_calls(cls, calls: Iterable[ToolCall]) -> "TagCalls":
        """The syntax in which these calls were written: an argument that is a text in one of them is a text."""
        schemas: dict[str, dict[str, object]] = {}
        for call in calls:
            texts = (key for key, value in call.arguments.items() if isinstance(value, str))
            schemas.setdefault(call.name, {}).update({key: {"type": "string"} for key in texts})
        return cls({name: {"properties": arguments} for name, arguments in schemas.items()})

    def _example(self) -> str:
        return self._write_call(ToolCall("NAME", {"KEY": "VALUE"}))

    def _call_rules(self, tools: Sequence[Tool], mark_term: Callable[[str], str]) -> str:
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
        return after_thought_rules([f"call: {' | '.join(ways)}", *others], mark_term, self.mark, "</tool_call>")

    def _write_call(self, call: ToolCall) -> str:
        texts = (
            (key, value if isinstance(value, str) else written_json(value)) for key, value in call.arguments.items()
        )
        inner = "".join(f"{_PARAMETER}{key}>\n{text}{VALUE_END}" for key, text in texts)
        return f"<tool_call>\n{_FUNCTION}{call.name}>\n{inner}</function>\n</tool_call>"

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
        parameters, arguments = self.parameters.get(name, {}), dict[str, object]()
        schemas = parameters.get("properties")
        for key, text_value in _arguments(inner.strip()):
            if key in arguments:
                raise ValueError("a key is given twice")
            schema = schemas.get(key, True) if isinstance(schemas, Mapping) else True
            arguments[key] = _read_value(key, text_value, schema, parameters)
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


def _read_value(key: str, text: str, schema: object, root: Mapping[str, object]) -> object:
    """The value of an argument. ``root`` is the schema of all arguments, to which references refer.

    Raises:
        ValueError: the schema allows no text, and what is written is not of a type that it allows.
    """
    types = _types(schema, root)
    if others := types - {"string"}:
        with suppress(ValueError):
            value = read_json(_CONSTANTS.get(text, text))
            if any(_is(value, kind) for kind in others):
                return value
    if "string" not in types:
        raise ValueError(f"the argument {key} is no {' or '.join(sorted(types))}: {text[:100]!r}")
    return text


def _is(value: object, kind: str) -> bool:
    """Whether a JSON value has a type. A boolean is no integer, although Python says so."""
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _types(schema: object, root: Mapping[str, object], depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema allows, as far as it names them; all if it names none."""
    if not isinstance(schema, Mapping) or depth > _MOST_REFERENCES:
        return _ALL
    found = _ALL
    named = schema.get("type")
    if isinstance(named, str | list | tuple):
        found &= frozenset([named] if isinstance(named, str) else map(str, named))
    if "const" in schema or isinstance(schema.get("enum"), list | tuple):
        values: Iterable[Any] = [schema["const"]] if "const" in schema else schema["enum"]
        found &= frozenset(kind for kind in _ALL if any(_is(value, kind) for value in values))
    if isinstance(reference := schema.get("$ref"), str):
        found &= _types(_referred(reference, root), root, depth + 1)
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(key), list | tuple) and branches:
            found &= frozenset[str]().union(*(_types(branch, root, depth + 1) for branch in branches))
    for branch in schema.get("allOf") or ():
        found &= _types(branch, root, depth + 1)
    return found or _ALL


def _referred(reference: str, root: Mapping[str, object]) -> object:
    """The schema at a pointer such as ``#/$defs/Point``; one that allows everything if there is none."""
    found: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~"), True) if isinstance(found, Mapping) else True
    return found


def _value_rule(name: str, schema: object, root: Mapping[str, object]) -> tuple[str, list[str]]:
    """A term for an argument's value and the end of its tag, and the rules that the term needs.

    Args:
        name: of a rule that may be defined.
        root: the schema of all arguments, to which references refer.
    """
    listed = schema.get("enum") if isinstance(schema, Mapping) else None
    if isinstance(listed, list | tuple) and listed and all(isinstance(each, str) for each in listed):
        return f"({' | '.join(map(json.dumps, listed))}) {json.dumps(VALUE_END)}", []
    if not isinstance(schema, Mapping) or "string" in _types(schema, root):
        return "text", []
    definitions: dict[str, Any] = {key: root[key] for key in ("$defs", "definitions") if key in root}
    if f'"{_PROPERTIES}' in written_json([dict(schema), definitions]):  # elsewhere there is no such place
        definitions["$defs"] = {**definitions.get("$defs", {}), "properties": root.get("properties")}
    alone = _repointed({"x-guidance": {"whitespace_pattern": BLANKS}} | definitions | dict(schema))
    return f"{name} {json.dumps(VALUE_END)}", [f"{name}: {json_rule(alone)}"]


def _repointed(schema: Any) -> Any:
    """A schema whose references to properties of the whole point to the definition "properties"."""
    if isinstance(schema, list | tuple):
        return [_repointed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {key: _repointed(each) for key, each in schema.items()}
    if isinstance(reference := made.get("$ref"), str):
        made["$ref"] = re.sub(f"^{_PROPERTIES}", "#/$defs/properties/", reference)
    return made


def _takes_others(parameters: Mapping[str, object]) -> bool:
    """Whether a tool takes arguments that "properties" does not list: its schema says so, or combines other schemas,
    which may list more."""
    more = parameters.get("additionalProperties")
    combined = any(key in parameters for key in ("anyOf", "oneOf", "allOf", "$ref"))
    return more not in (None, False) or (combined and more is None)

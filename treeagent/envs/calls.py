"""Parse texts into tool calls, and check calls against the tools that an environment offers.

A text calls a tool in one of these ways:

* ``name`` or ``name[]`` calls a tool without arguments. If the tool requires one text, ``name[]`` passes an empty text.
* ``name[text]`` calls a tool with one argument, or the required one: everything between the outer brackets.
* ``name[first, second]`` calls a tool that requires several arguments, in the order of ``required``, without commas.
* ``name {"key": value}`` calls any tool, with its arguments as a JSON object.
* Any other text calls the only tool, if that takes one text: ``go north`` calls ``act[go north]``.

Between brackets, an argument is JSON or a text, as its schema allows (``read_value``).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from treeagent.envs.base import ToolSpec
from treeagent.types import ToolCall, only_text

_TEXT_CALL = re.compile(r"\s*+([\w.-]++)\s*+(?:\[(.*)\]|(\{.*\}))?\s*+", re.DOTALL)
"""A call of an unknown tool. Without possessive quantifiers (``*+``), many blanks take quadratic time."""
_ARGUMENTS = re.compile(r"\s*+(?:\[(.*)\]|(\{.*\}))?\s*+", re.DOTALL)
"""What follows the name of a known tool."""
TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}
_ALL = frozenset(TYPES)


def text_tool(name: str, description: str, *arguments: str, read_only: bool = False, answers: bool = False) -> ToolSpec:
    """Return the description of a tool whose ``arguments`` are all required texts."""
    texts = {argument: {"type": "string"} for argument in arguments}
    schema = {"type": "object", "properties": texts, "required": list(arguments), "additionalProperties": False}
    return ToolSpec(name, description, schema, read_only, answers)


def as_call(action: str | ToolCall, tools: Sequence[ToolSpec]) -> str | ToolCall:
    """The action as an environment with ``tools`` receives it: a text that names a tool becomes a ``ToolCall``, any
    other text the argument of the only tool, if that takes one text. What cannot be parsed stays a text."""
    if isinstance(action, ToolCall):
        return action
    if (parts := _parts(action, tools)) is not None and any(tool.name == parts[0] for tool in tools):
        call = _read_text(action, tools)
        return call if isinstance(call, ToolCall) else action
    argument = only_text([tool.parameters for tool in tools])
    return ToolCall(tools[0].name, {argument: action}) if argument else action


def read_call(action: str | ToolCall, tools: Sequence[ToolSpec]) -> ToolCall | str:
    """Parse an action into a call of one of ``tools``, or return a sentence that says what is wrong: no such tool, an
    argument is missing, one too many, or none that its schema allows (``fits``)."""
    call = action if isinstance(action, ToolCall) else _read_text(action, tools)
    if isinstance(call, str):
        return call
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if tool is None:
        return f"no tool {call.name}, use one of: {', '.join(tool.name for tool in tools)}"
    schemas, required = arguments_of(tool)
    if missing := [key for key in required if key not in call.arguments]:
        return f"{tool.name} needs {missing[0]}"
    others = tool.parameters.get("additionalProperties", True)
    for key, value in call.arguments.items():
        schema = schemas.get(key, others)
        if key not in schemas and others is False:
            return f"{tool.name} takes no {key}"
        if not fits(value, schema, tool.parameters):
            types = json_types(schema, tool.parameters)
            wrong = f"of type {' or '.join(sorted(types))}"
            return f"{key} of {tool.name} must be {_listed(schema) if _has_type(value, types) else wrong}"
    return call


def _read_text(text: str, tools: Sequence[ToolSpec]) -> ToolCall | str:
    parts = _parts(text, tools)
    if parts is None:
        return "write tool[argument]"
    name, argument, written = parts
    if written is not None:
        try:
            arguments = orjson.loads(written)
        except ValueError:
            return f"the arguments of {name} are no JSON object"
        return ToolCall(name, arguments)
    known = next((tool for tool in tools if tool.name == name), None)
    if argument is None or known is None:
        return ToolCall(name, {})
    schemas, required = arguments_of(known)
    if not argument and not required:
        return ToolCall(name, {})
    if not schemas:
        return f"{name} takes no argument"
    keys = list(schemas if len(schemas) == 1 else required)
    values = [argument] if len(keys) == 1 else [each.strip() for each in argument.split(",")]
    if not keys or len(values) != len(keys):
        return f'{name} takes its arguments as JSON: {name} {{"argument": value}}'
    pairs = zip(keys, values, strict=True)
    return ToolCall(name, {key: read_value(value, schemas.get(key), known.parameters) for key, value in pairs})


def _parts(text: str, tools: Sequence[ToolSpec]) -> tuple[str, str | None, str | None] | None:
    """The tool's name in a call, what is between its brackets, and its JSON object. None if the text is no call. The
    name of a tool may hold any character."""
    begun = text.lstrip()
    for name in sorted((tool.name for tool in tools if begun.startswith(tool.name)), key=len, reverse=True):
        if match := _ARGUMENTS.fullmatch(begun, len(name)):
            return name, match[1], match[2]
    found = _TEXT_CALL.fullmatch(text)
    return None if found is None else (found[1], found[2], found[3])


def read_value(text: str, schema: object, root: Mapping[str, object]) -> object:
    """The value of an argument that is written as a text: JSON or the text itself, as the schema allows. ``root`` is
    the schema of all arguments, to which references refer."""
    try:
        value = orjson.loads(text)  # orjson also rejects values that cannot be stored: NaN and unpaired surrogates
    except ValueError:
        return text
    ways = (text, value) if isinstance(value, str) else (value, text)
    otherwise = text if "string" in json_types(schema, root) else value
    return next((each for each in ways if fits(each, schema, root)), otherwise)


def json_types(schema: object, root: Mapping[str, object], depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema allows, as far as it names them; all if it names none."""
    if not isinstance(schema, Mapping) or depth > 20:  # references in a circle
        return _ALL
    found, named = _ALL, schema.get("type")
    if isinstance(named, str | list | tuple):
        found &= frozenset([named] if isinstance(named, str) else map(str, named))
    if "const" in schema or isinstance(schema.get("enum"), list | tuple):
        values: Iterable[Any] = [schema["const"]] if "const" in schema else schema["enum"]
        found &= frozenset(kind for kind in _ALL if any(_has_type(value, (kind,)) for value in values))
    for branches in _combined(schema, root):
        found &= frozenset[str]().union(*(json_types(branch, root, depth + 1) for branch in branches))
    return found or _ALL


def _combined(schema: Mapping[str, Any], root: Mapping[str, object]) -> Iterator[Sequence[object]]:
    """Lists of schemas that a schema refers to; a value must fit one of each list."""
    if isinstance(reference := schema.get("$ref"), str):  # a pointer such as "#/$defs/Point"
        referred: Any = root
        for part in reference.removeprefix("#").strip("/").split("/"):
            referred = referred.get(part) if isinstance(referred, Mapping) else None
        yield [referred]
    yield from (found for key in ("anyOf", "oneOf") if isinstance(found := schema.get(key), list | tuple) and found)
    yield from ([each] for each in schema.get("allOf") or ())


def fits(value: object, schema: object, root: Mapping[str, object] | None = None, depth: int = 0) -> bool:
    """Whether a schema allows an argument, by ``type``, ``enum``, ``const`` and the schemas that these stand in; the
    rest of the schema is not checked. ``root`` is as for ``read_value``."""
    if not isinstance(schema, Mapping) or depth > 20:  # references in a circle
        return True
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(listed, list | tuple) and all(
        each != value or isinstance(each, bool) != isinstance(value, bool) for each in listed
    ):
        return False
    return _has_type(value, json_types(schema, root or {})) and all(
        any(fits(value, branch, root, depth + 1) for branch in branches) for branches in _combined(schema, root or {})
    )


def _listed(schema: object) -> str:
    """What a value must be that has the right type."""
    if isinstance(schema, Mapping) and ("enum" in schema or "const" in schema):
        return f"one of {schema.get('enum', [schema.get('const')])!s:.200}"
    return f"what its schema allows: {schema!s:.200}"


def _has_type(value: object, kinds: Iterable[str]) -> bool:
    """Whether a value has one of the JSON types. A boolean is no number in JSON, although Python says so."""
    numbers = {"integer", "number"} if isinstance(value, bool) else set[str]()
    return any(isinstance(value, TYPES[kind]) for kind in kinds if kind not in numbers)


def arguments_of(tool: ToolSpec) -> tuple[Mapping[str, object], Sequence[str]]:
    """Return the schema of each argument by name, and the names of the required arguments."""
    schemas, required = tool.parameters.get("properties"), tool.parameters.get("required")
    return schemas if isinstance(schemas, Mapping) else {}, required if isinstance(required, list | tuple) else ()

"""Parse texts into tool calls, and check calls against the tools that an environment offers.

A text calls a tool in one of these ways:

* ``name`` or ``name[]`` calls a tool without arguments. If the tool requires one text, ``name[]`` passes an empty text.
* ``name[text]`` calls a tool with one argument: everything between the outer brackets, including commas and brackets.
  If the tool has several arguments but requires exactly one, the text is the required one.
* ``name[first, second]`` calls a tool that requires several arguments, in the order of ``required`` in its schema. The
  text must contain exactly one comma fewer than there are arguments.
* ``name {"key": value}`` calls any tool, with its arguments as a JSON object.
* Any other text calls the only tool, if that takes one text: ``go north`` calls ``act[go north]``.

Between brackets, an argument of type ``string`` is used as written. An argument of another type, such as ``integer``,
is parsed as JSON: ``add[1, 2]`` passes two integers.
"""

import re
from collections.abc import Mapping, Sequence

import orjson

from treeagent.envs.base import ToolSpec
from treeagent.types import ToolCall, only_text

_TEXT_CALL = re.compile(r"\s*+([\w.-]++)\s*+(?:\[(.*)\]|(\{.*\}))?\s*+", re.DOTALL)
"""Possessive quantifiers (``*+``): without them, a long run of blanks takes time quadratic in its length."""
TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}


def text_tool(name: str, description: str, *arguments: str, read_only: bool = False, answers: bool = False) -> ToolSpec:
    """Return the description of a tool whose ``arguments`` are all required texts."""
    return ToolSpec(
        name,
        description,
        {
            "type": "object",
            "properties": {argument: {"type": "string"} for argument in arguments},
            "required": list(arguments),
            "additionalProperties": False,
        },
        read_only,
        answers,
    )


def as_call(action: str | ToolCall, tools: Sequence[ToolSpec]) -> str | ToolCall:
    """Return the action as an environment with ``tools`` receives it: a text that names a tool becomes a ``ToolCall``.

    The arguments are not checked against the tool's schema; the environment refuses what it cannot do. A text that
    names no tool becomes the argument of the only tool, if that takes one text. Otherwise it stays a text. A text that
    names a tool but has arguments that cannot be parsed also stays a text.
    """
    if isinstance(action, ToolCall):
        return action
    match = _TEXT_CALL.fullmatch(action)
    if match is not None and any(tool.name == match[1] for tool in tools):
        call = _read_text(action, tools)
        return call if isinstance(call, ToolCall) else action
    argument = only_text([tool.parameters for tool in tools])
    return ToolCall(tools[0].name, {argument: action}) if argument else action


def read_call(action: str | ToolCall, tools: Sequence[ToolSpec]) -> ToolCall | str:
    """Parse an action into a call of one of ``tools``; return a sentence that says what is wrong if it is not valid.

    The name must be that of a tool, and the arguments must fit its schema: every required argument is present, each has
    its type, and there are no others if ``additionalProperties`` is false. The rest of the schema is not checked.
    """
    call = action if isinstance(action, ToolCall) else _read_text(action, tools)
    if isinstance(call, str):
        return call
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if tool is None:
        return f"no tool {call.name}, use one of: {', '.join(tool.name for tool in tools)}"
    return _mismatch(call.arguments, tool) or call


def _read_text(text: str, tools: Sequence[ToolSpec]) -> ToolCall | str:
    match = _TEXT_CALL.fullmatch(text)
    if match is None:
        return "write tool[argument]"
    name, argument, written = match.groups()
    if written is not None:
        try:
            arguments = orjson.loads(written)
        except ValueError:  # orjson also rejects values that cannot be stored: NaN and unpaired surrogates
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
    return ToolCall(name, {key: _value(value, schemas.get(key)) for key, value in zip(keys, values, strict=True)})


def _value(written: str, schema: object) -> object:
    """Parse an argument as JSON. Return the text itself if the schema's type is string or missing, or if the text is
    not valid JSON."""
    if type_of(schema) in ("", "string"):
        return written
    try:
        return orjson.loads(written)
    except ValueError:
        return written


def _mismatch(arguments: Mapping[str, object], tool: ToolSpec) -> str:
    """Return why ``arguments`` do not fit the tool's schema; empty if they pass the checks of ``read_call``."""
    schemas, required = arguments_of(tool)
    for key in required:
        if key not in arguments:
            return f"{tool.name} needs {key}"
    for key, value in arguments.items():
        if key not in schemas:
            if tool.parameters.get("additionalProperties") is False:
                return f"{tool.name} takes no {key}"
            continue
        if not fits(value, schemas[key]):
            return f"{key} of {tool.name} must be of type {type_of(schemas[key])}"
    return ""


def fits(value: object, schema: object) -> bool:
    """Whether an argument has the JSON type that its schema requires."""
    type_name = type_of(schema)
    types = TYPES.get(type_name, ())
    # In Python True is an int, but in JSON it is not a number.
    return not types or (isinstance(value, types) and (not isinstance(value, bool) or type_name == "boolean"))


def type_of(schema: object) -> str:
    """Return the JSON type that a schema requires; empty if it requires none or allows several."""
    type_name = schema.get("type") if isinstance(schema, Mapping) else None
    return type_name if isinstance(type_name, str) else ""


def arguments_of(tool: ToolSpec) -> tuple[Mapping[str, object], Sequence[str]]:
    """Return the schema of each argument by name, and the names of the required arguments."""
    schemas, required = tool.parameters.get("properties"), tool.parameters.get("required")
    return schemas if isinstance(schemas, Mapping) else {}, required if isinstance(required, list | tuple) else ()

"""How a text calls a tool, and whether a call fits the tools that an environment offers.

A text calls a tool in one of these ways:

* ``name`` or ``name[]`` calls a tool without arguments; of a tool that needs one text, ``name[]`` gives it the empty
  text.
* ``name[text]`` calls a tool of one argument. All between the outer brackets is that argument, commas and brackets
  included. A tool of several arguments takes it as its required argument, if it requires exactly one.
* ``name[first, second]`` calls a tool that requires several arguments, in the order of its schema's ``required``. There
  must be exactly one comma less than there are arguments.
* ``name {"key": value}`` calls any tool, with its arguments as a JSON object.
* Any other text calls the only tool, if that takes one text: ``go north`` calls ``act[go north]``.

Between brackets an argument of type ``string`` is taken as it is written. One of another type, such as ``integer``, is
read as JSON: ``add[1, 2]`` passes two integers.
"""

import re
from collections.abc import Mapping, Sequence

import orjson

from treeagent.envs.base import ToolSpec
from treeagent.types import ToolCall, only_text

_TEXT_CALL = re.compile(r"\s*+([\w.-]++)\s*+(?:\[(.*)\]|(\{.*\}))?\s*+", re.DOTALL)
"""Possessive (``*+``): without it a long run of blanks takes time in proportion to the square of its length."""
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}


def text_tool(name: str, description: str, *arguments: str, read_only: bool = False, answers: bool = False) -> ToolSpec:
    """A tool that takes a text for each of its ``arguments``."""
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
    """The action as an environment with ``tools`` gets it: a text that names one of them becomes a ``ToolCall``.

    The arguments need not fit the tool's schema; the environment refuses what it cannot do. A text that names no tool
    is the argument of the only tool, where that takes one text. Elsewhere it stays a text, and so does one that names a
    tool with arguments that cannot be read.
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
    """The call of one of ``tools`` that an action makes, or one sentence that says why it makes none.

    The name must be a tool's, and the arguments must fit its schema: no required one is missing, each has its type, and
    there is no other one where ``additionalProperties`` is false. Nothing else of the schema is checked.
    """
    call = action if isinstance(action, ToolCall) else _read_text(action, tools)
    if isinstance(call, str):
        return call
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if tool is None:
        return f"no tool {call.name}, use one of: {', '.join(tool.name for tool in tools)}"
    return _misfit(call.arguments, tool) or call


def _read_text(text: str, tools: Sequence[ToolSpec]) -> ToolCall | str:
    match = _TEXT_CALL.fullmatch(text)
    if match is None:
        return "write tool[argument]"
    name, argument, written = match.groups()
    if written is not None:
        try:
            arguments = orjson.loads(written)
        except ValueError:  # also for what a file cannot hold: NaN, halves of surrogate pairs
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
    """An argument as its schema's type reads it: JSON, but of a string, of no declared type and of what is no JSON the
    text itself."""
    if type_of(schema) in ("", "string"):
        return written
    try:
        return orjson.loads(written)
    except ValueError:
        return written


def _misfit(arguments: Mapping[str, object], tool: ToolSpec) -> str:
    """Why ``arguments`` do not fit the tool's schema; empty where they do, as far as it is checked."""
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
    """Whether an argument has the JSON type that its schema asks for."""
    wanted = type_of(schema)
    types = _TYPES.get(wanted, ())
    # True is an int in Python, but no number in JSON.
    return not types or (isinstance(value, types) and (not isinstance(value, bool) or wanted == "boolean"))


def type_of(schema: object) -> str:
    """The one JSON type that a schema asks for; empty where it asks for none or several."""
    wanted = schema.get("type") if isinstance(schema, Mapping) else None
    return wanted if isinstance(wanted, str) else ""


def arguments_of(tool: ToolSpec) -> tuple[Mapping[str, object], Sequence[str]]:
    """The schema of each argument by its name, and the names of those that the tool requires."""
    schemas, required = tool.parameters.get("properties"), tool.parameters.get("required")
    return schemas if isinstance(schemas, Mapping) else {}, required if isinstance(required, list | tuple) else ()

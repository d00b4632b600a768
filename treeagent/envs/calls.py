"""Calls of tools, as text or as tool calls, held against the tools that there are."""

import json
import re
from collections.abc import Mapping, Sequence

from treeagent.envs.base import ToolSpec
from treeagent.types import ToolCall

_TEXT_CALL = re.compile(r"\s*([\w.-]+)\s*(?:\[(.*)\]|(\{.*\}))?\s*", re.DOTALL)
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}


def text_tool(name: str, description: str, argument: str = "", *, read_only: bool = False) -> ToolSpec:
    """A tool that takes one text, or, without ``argument``, nothing."""
    return ToolSpec(
        name,
        description,
        {
            "type": "object",
            "properties": {argument: {"type": "string"}} if argument else {},
            "required": [argument] if argument else [],
            "additionalProperties": False,
        },
        read_only,
    )


def read_call(action: str | ToolCall, tools: Sequence[ToolSpec]) -> ToolCall | str:
    """The call that an action asks for, or the reason why it asks for none.

    As text, ``name[argument]`` calls a tool of one argument, or of one that is required, by a text, ``name[]`` one of
    none, and ``name {"key": value}`` any tool, its arguments in JSON.
    """
    call = action if isinstance(action, ToolCall) else _read_text(action, tools)
    if isinstance(call, str):
        return call
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if tool is None:
        return f"no tool {call.name}, use one of: {', '.join(tool.name for tool in tools)}"
    return _misfit(call.arguments, tool.parameters, tool.name) or call


def _read_text(text: str, tools: Sequence[ToolSpec]) -> ToolCall | str:
    match = _TEXT_CALL.fullmatch(text)
    if match is None:
        return "write tool[argument]"
    name, argument, written = match.groups()
    if written is not None:
        try:
            arguments = json.loads(written)
        except (ValueError, RecursionError):
            return f"the arguments of {name} are no JSON object"
        return ToolCall(name, arguments)
    known = next((tool for tool in tools if tool.name == name), None)
    if argument is None or known is None or (not argument and not known.parameters.get("required")):
        return ToolCall(name, {})
    properties, required = known.parameters.get("properties"), known.parameters.get("required")
    keys = list(properties) if isinstance(properties, Mapping) else [""]
    if not keys:
        return f"{name} takes no argument"
    if len(keys) > 1 and isinstance(required, list | tuple):
        keys = list(required)
    if len(keys) != 1:
        return f'{name} takes its arguments as JSON: {name} {{"argument": value}}'
    return ToolCall(name, {keys[0]: argument})


def _misfit(arguments: Mapping[str, object], schema: Mapping[str, object], name: str) -> str:
    """Why ``arguments`` do not fit the JSON schema of their object; empty where they do, as far as it is looked at."""
    properties, required = schema.get("properties"), schema.get("required")
    known = properties if isinstance(properties, Mapping) else {}
    for key in required if isinstance(required, list | tuple) else ():
        if key not in arguments:
            return f"{name} needs {key}"
    for key, value in arguments.items():
        if key not in known:
            if schema.get("additionalProperties") is False:
                return f"{name} takes no {key}"
            continue
        wanted = known[key].get("type") if isinstance(known[key], Mapping) else None
        types = _TYPES.get(wanted, ()) if isinstance(wanted, str) else ()
        # True is an int in Python, but no number in JSON.
        if types and (not isinstance(value, types) or (isinstance(value, bool) and wanted != "boolean")):
            return f"{key} of {name} must be of type {wanted}"
    return ""

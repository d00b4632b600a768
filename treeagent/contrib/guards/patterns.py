"""Regular expressions that find a call however it is written."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from treeagent.envs.base import ToolSpec
from treeagent.envs.calls import arguments_of, as_call, read_call
from treeagent.types import ToolCall, UserError, only_text


class Patterns:
    """Patterns for calls of ``tools``, case-insensitive. They are searched in the call written as
    ``tool[argument, argument]`` with each argument as plain text, as JSON, and in the action as the agent wrote it."""

    def __init__(self, patterns: Sequence[str], tools: Sequence[ToolSpec]) -> None:
        self._tools = tools
        self._patterns = [_compiled(each) for each in patterns]

    def matched(self, action: str | ToolCall) -> str | None:
        """Return the first pattern that the action matches, or None."""
        call = self.call(action)
        texts = {each for written in (action, call) for each in _formats(written)}
        argument = only_text([tool.parameters for tool in self._tools])
        if isinstance(call, ToolCall) and argument in call.arguments:
            texts.add(str(call.arguments[argument]))  # the only tool takes one text, which alone makes the call
        texts |= set(map(_without_spare_blanks, texts))
        return next((each.pattern for each in self._patterns if any(map(each.search, texts))), None)

    def call(self, action: str | ToolCall) -> str | ToolCall:
        """Return the call that an action makes, with its arguments in the order in which brackets hold them."""
        read = read_call(as_call(action, self._tools), self._tools) if self._tools else action
        call = read if isinstance(read, ToolCall) else action
        tool = next((tool for tool in self._tools if isinstance(call, ToolCall) and tool.name == call.name), None)
        if tool is None or isinstance(call, str):
            return call
        schemas, required = arguments_of(tool)
        order = [key for key in (*required, *schemas) if key in call.arguments]
        return replace(call, arguments={key: call.arguments[key] for key in (*order, *call.arguments)})


def format_call(call: str | ToolCall) -> str:
    """A call as ``tool[argument, argument]``, or the text itself."""
    return _formats(call)[0]


def format_named(call: str | ToolCall) -> str:
    """Return a call with the names of its arguments: ``tool {"argument": value}``, or the text itself."""
    return _formats(call)[-1]


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE | re.DOTALL)  # DOTALL, so that a line break cannot hide a call
    except re.error as error:
        raise UserError(f"{pattern!r} is no regular expression: {error}: correct it") from error


def _formats(call: str | ToolCall) -> tuple[str, ...]:
    if isinstance(call, str):
        return (call,)
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False, default=str)
    return f"{call.name}[{', '.join(_texts(call.arguments))}]", f"{call.name} {arguments}"


def _without_spare_blanks(text: str) -> str:
    """Return a call as most environments read it: several blanks count as one, and those next to a bracket as none."""
    return re.sub(r" ?([\[\]]) ?", r"\1", " ".join(text.split()))


def _texts(value: object) -> Iterator[str]:
    """Yield all values of an argument as plain text, including nested ones."""
    match value:
        case str():
            yield value
        case Mapping():
            for each in value.values():
                yield from _texts(each)
        case list() | tuple():
            for each in value:
                yield from _texts(each)
        case _:
            yield str(value)

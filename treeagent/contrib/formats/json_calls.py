"""Tool calls in JSON as Llama and Mistral models write them."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from treeagent.generators.turn import (
    Tool,
    ToolCalls,
    after_thought_rules,
    named_call,
    named_rules,
    read_json,
    thinking_rule,
    tool_call,
)
from treeagent.types import ToolCall

_LLAMA = re.compile(r'^(<\|python_tag\|>\s*)?\{\s*"name"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LlamaCalls(ToolCalls):
    """``{"name": ..., "parameters": {...}}`` from the start of a line to the end of the turn."""

    tools: Sequence[Tool] = ()
    mark: ClassVar[str] = '{"name"'
    end: ClassVar[str] = ""
    spelling: ClassVar[tuple[str, str, str]] = ('{"name": ', ', "parameters": ', "}")
    frame: ClassVar[tuple[str, str]] = ("", "")

    def call_rules(self, tools: Sequence[Tool], mark_term: Callable[[str], str]) -> str:
        calls = named_rules(tools, self.spelling)
        return "\n".join((r"turn: thinking? /\n{0,2}/ call", thinking_rule(mark_term), *calls))

    def begin(self, text: str) -> int:
        found = _LLAMA.search(text)
        return -1 if found is None else found.start()

    def read_call(self, text: str) -> ToolCall:
        return named_call(read_json(text[self.begin(text) :].removeprefix("<|python_tag|>")), "parameters")


@dataclass(frozen=True, slots=True)
class MistralCalls(ToolCalls):
    """``[TOOL_CALLS] [{"name": ..., "arguments": {...}}]`` or ``[TOOL_CALLS]name[ARGS]{...}``, in some versions with
    ``[CALL_ID]`` and an id after the name."""

    tools: Sequence[Tool] = ()
    mark: ClassVar[str] = "[TOOL_CALLS]"
    end: ClassVar[str] = ""
    spelling: ClassVar[tuple[str, str, str]] = ('[{"name": ', ', "arguments": ', "}]")
    frame: ClassVar[tuple[str, str]] = ("[TOOL_CALLS] ", "")

    def call_rules(self, tools: Sequence[Tool], mark_term: Callable[[str], str]) -> str:
        first, *schemas = named_rules(tools, self.spelling)
        later = (f"{json.dumps(tool.name)} {mark_term('[ARGS]')} arguments_{at}" for at, tool in enumerate(tools))
        return after_thought_rules([" | ".join((first, *later)), *schemas], mark_term, self.mark)

    def read_call(self, text: str) -> ToolCall:
        inner = text[self.begin(text) :].removeprefix(self.mark).strip()
        if inner.startswith("["):
            calls = read_json(inner)
            if not isinstance(calls, list) or len(calls) != 1:
                raise ValueError("a turn makes one tool call")
            return named_call(calls[0], "arguments")
        name, _, arguments = inner.partition("[ARGS]")
        return tool_call(name.partition("[CALL_ID]")[0].strip(), read_json(arguments))

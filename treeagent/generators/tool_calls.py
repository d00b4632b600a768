"""A model's own tool calls, in the syntax that its chat template shows: what all syntaxes share, and calls in JSON."""

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from treeagent.generators.grammar import (
    ANY,
    TASK,
    AfterThinking,
    Tool,
    after_thought_rules,
    call_rules,
    json_between,
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
    ``[TOOL_CALLS] [{"name": ..., "arguments": {...}}]`` or ``[TOOL_CALLS]name[ARGS]{...}``, in some versions with
    ``[CALL_ID]`` and an id after the name.
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
    return tool_call(name.partition("[CALL_ID]")[0].strip(), read_json(arguments))

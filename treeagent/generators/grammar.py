"""Parse and write turns of the agent, which consist of a thought and a call: ReAct text, JSON with when/which/how, or a
model's own tool calls.

Parsing is strict. A malformed or ambiguous turn is data, not an exception: its action carries the reason as ``error``,
which the agent reads next.

A call is either a ``ToolCall`` (a tool's name and arguments) or plain text, which is passed to the environment
unchanged. An environment with tools may also understand plain text, such as ``search[red lamp]``, or refuse it.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

import orjson

from treeagent.types import Action, ToolCall, only_text

_THOUGHT = "Thought: "
_ACTION = "Action: "
_ACTION_LINE = re.compile(f"(?:^|(?<=</think>)){_ACTION.rstrip()}", re.MULTILINE)
"""The beginning of an action: at the start of a line, or directly after a thought in ``<think>`` tags."""
ANY = "(?s:.*)"
"""Regular expression for any text, line breaks included."""
TASK = (
    "You act in an environment to do the task that the user gives you. Each message of yours is one turn; the "
    "environment's answer to it follows."
)
_MOST_NESTED = 100
"""Deepest nesting of a call's arguments; stored trees cannot hold deeper values."""
_MOST_INTEGER = 2**63 - 1024
"""Largest integer that fits into 64 bits, which stored trees require, and that is exact as a double, which llguidance
uses for bounds."""
BLANKS = "[ \\n]?"
"""Blanks allowed between the parts of a call's JSON. If more were allowed, a weak model could write blanks forever."""


class Tool(Protocol):
    """A tool of an environment. ``parameters`` is the JSON schema of its arguments."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, object]: ...


class Grammar(Protocol):
    """The format of a turn: how it writes a thought and a call."""

    @property
    def calls(self) -> Literal["text", "named", "native"]:
        """Form of a call: "text" is always plain text; "named" is a tool's name and arguments in treeagent's JSON;
        "native" is the model's own syntax, where the chat template lists the tools."""

    @property
    def mark(self) -> str:
        """The text with which a call begins."""

    def begins_action(self, text: str, *, opened: bool = False) -> bool:
        """Whether this unfinished turn has ended its thought. ``opened`` is as for ``lead``."""

    def lead(self, text: str, *, opened: bool, calls: bool) -> str:
        """The text to append to this unfinished turn, in which no call has begun, so that its call begins: up to and
        including ``mark``. Empty if nothing needs to be written, as in a turn that consists of text only.

        Args:
            opened: whether the chat template has opened the turn's thought.
            calls: whether there are tools to call.
        """

    def instructions(self, tools: Sequence[Tool]) -> str:
        """The system message that explains the format and the tools to a model that was not trained on them."""

    def write(self, thought: str, call: str | ToolCall) -> str:
        """The text of a turn with this thought and call."""

    def rules(self, tools: Sequence[Tool], mark_term: Callable[[str], str]) -> str:
        """Rules of well-formed turns in llguidance's dialect of Lark; the rule ``turn`` describes a whole turn. With
        tools, a turn calls one of them with arguments that match its schema; without tools, it says a text.

        Args:
            mark_term: writes a mark as a term of the rules: quoted, or as a special token (``<[7]>``).
        """

    def read(self, text: str, token_ids: Sequence[int] = (), logprobs: Sequence[float] = ()) -> Action:
        """The action in ``text``. Its ``error`` is set if the text does not hold exactly one call."""

    def read_thought(self, text: str, token_ids: Sequence[int] = (), logprobs: Sequence[float] = ()) -> Action:
        """The thought only, from the start of a turn up to and including the mark of its call."""


def openai_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools in OpenAI's form, as chat templates take them."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
        }
        for tool in tools
    ]


@dataclass(frozen=True, slots=True)
class ReAct:
    """``Thought: ...`` on the first line, ``Action: ...`` on the last (Yao et al. 2023)."""

    calls: ClassVar[Literal["text"]] = "text"
    mark: ClassVar[str] = _ACTION.rstrip()

    def begins_action(self, text: str, *, opened: bool = False) -> bool:
        if not _thinks_in_tags(text, opened):
            return _ACTION_LINE.search(text.lstrip()) is not None
        _, closed, rest = text.rpartition("</think>")
        return bool(closed) and _ACTION_LINE.search(rest.lstrip()) is not None

    def lead(self, text: str, *, opened: bool, calls: bool) -> str:
        if _thinks_in_tags(text, opened) and "</think>" not in text:
            return f"</think>{self.mark}"
        return f"\n{self.mark}" if text and text[-1] != "\n" and not text.endswith("</think>") else self.mark

    def instructions(self, tools: Sequence[Tool]) -> str:
        turn = ("Write each turn in this form:", f"{_THOUGHT}what you think", f"{_ACTION}what you do")
        calls = ("An action calls one of these tools:", *map(_as_text, tools)) if tools else ()
        if only_text([tool.parameters for tool in tools]):
            schema = arguments_of(tools[0])[0]
            calls = (f"What you do: {tools[0].description} {written_json(schema)}",)
        return "\n".join((TASK, *turn, *calls))

    def rules(self, tools: Sequence[Tool], mark_term: Callable[[str], str]) -> str:
        """As for ``Grammar``. A turn is an optional thought of one line and an action of one line. The action calls a
        tool in the form of ``_as_text``, or with its arguments as JSON. A turn may begin with a blank, because some
        tokenizers (SentencePiece) begin every text with one."""
        line = f"& ~/{ANY}{_ACTION.rstrip()}{ANY}/"
        rules = [f'turn: / ?/ ("{_THOUGHT}" THOUGHT "\\n")? "{_ACTION}" call', rf"THOUGHT: /[^\n]*/ {line}"]
        only = only_text([tool.parameters for tool in tools])
        if not tools or only:
            rule = _bracketed(arguments_of(tools[0])[0][only], _TEXT) if only else _TEXT
            rules.append(f"SAID: ({rule}) {line}")
        ways = ["SAID"] if not tools or only else []
        for index, tool in enumerate(tools):
            found, required = arguments_of(tool)
            keys = list(found) if len(found) == 1 else list(required) if set(found) == set(required) else []
            inner = [_bracketed(found[key], _TEXT if len(keys) == 1 else _WORDS) for key in keys]
            if not found:
                ways.append(json.dumps(tool.name))
            elif inner and all(inner):
                # A single terminal, because the argument itself may contain brackets.
                rule = f'{json.dumps(f"{tool.name}[")} {_COMMA.join(inner)} "]"'
                rules.append(f"CALL_{index}: ({rule}) {line}")
                ways.append(f"CALL_{index}")
            ways.append(f"{json.dumps(f'{tool.name} ')} arguments_{index}")
            rules.append(schema_rule(index, tool, "[ ]?"))
        return "\n".join((*rules, f"call: {' | '.join(ways)}"))

    def write(self, thought: str, call: str | ToolCall) -> str:
        action = call if isinstance(call, str) else f"{call.name} {written_json(call.arguments)}"
        return f"{_THOUGHT}{thought}\n{_ACTION}{action}" if thought else f"{_ACTION}{action}"

    def read(self, text: str, token_ids: Sequence[int] = (), logprobs: Sequence[float] = ()) -> Action:
        *heads, call = _ACTION_LINE.split(text.rpartition("</think>")[2].lstrip())  # a thought may draft an action
        if not heads:
            *heads, call = _ACTION_LINE.split(text.lstrip())
        thought = _thought(text.removesuffix(call).removesuffix(self.mark))
        call = call.strip()
        error = ""
        if not heads:
            call, thought, error = "", text.strip(), f"there is no line that starts with {self.mark!r}"
        elif len(heads) > 1:
            call, error = "", "there is more than one action"
        elif not call:
            error = f"nothing follows {self.mark!r}"
        elif "\n" in call:
            call, error = "", "the action is longer than one line"
        return Action(text, call, thought, tuple(token_ids), tuple(logprobs), error)

    def read_thought(self, text: str, token_ids: Sequence[int] = (), logprobs: Sequence[float] = ()) -> Action:
        return Action(text, "", _thought(text.rpartition(self.mark)[0]), tuple(token_ids), tuple(logprobs))


_COMMA = ' ", " '
_TEXT = r"/[^\n]*[^\s][^\n]*/"
_WORDS = r"/[^\n,]*[^\s,][^\n,]*/"
"""Text arguments between the brackets of a call: ``_TEXT`` is for a tool with one argument, ``_WORDS`` for several."""
_SCALARS = {"integer": "/-?(0|[1-9][0-9]{0,14})/", "number": r"/-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,14})?/"}
"""Rules of numbers between the brackets of a call."""


def _bracketed(schema: object, text: str) -> str:
    """The rule of an argument between the brackets of a call; empty if the argument must be written as JSON.

    Args:
        text: the rule of a text argument.
    """
    if not isinstance(schema, Mapping):
        return ""
    if isinstance(listed := schema.get("enum"), list | tuple) and listed and all(isinstance(e, str) for e in listed):
        return f"({' | '.join(map(json.dumps, listed))})"
    if set(schema) - {"type", "title", "description"}:  # further constraints, such as bounds of a number
        return ""
    kind = schema.get("type")
    return text if kind == "string" else _SCALARS.get(str(kind), "")


def _thinks_in_tags(text: str, opened: bool) -> bool:
    """Whether a turn begins with a thought in ``<think>`` tags; ``opened`` is as for ``Grammar.lead``."""
    return opened or text.lstrip().startswith("<think>")


def _thought(head: str) -> str:
    thinking, _, said = head.rpartition("</think>")
    return "\n".join(filter(None, (_bare(thinking), _bare(said).removeprefix(_THOUGHT.strip()).strip())))


class AfterThinking(ABC):
    """Base class of grammars in which a turn is a thought, in ``<think>`` tags or in plain text, followed by a call."""

    calls: ClassVar[Literal["named", "native"]]

    @property
    @abstractmethod
    def mark(self) -> str:
        """As for ``Grammar``."""

    @abstractmethod
    def _begin(self, text: str) -> int:
        """The index at which the call begins in the text after the ``<think>`` tags; -1 if there is no call."""

    @abstractmethod
    def _call(self, text: str) -> str | ToolCall:
        """The call in the text after the ``<think>`` tags.

        Raises:
            ValueError: there is not exactly one call; the message is shown to the agent.
        """

    def begins_action(self, text: str, *, opened: bool = False) -> bool:
        thought, closed, rest = text.partition("</think>")
        if opened or thought.lstrip().startswith("<think>"):
            text = rest if closed else ""
        said = text.rpartition("</think>")[2]
        begin = self._begin(text)
        # A call that a </think> cuts has it in an argument. A whole call before a </think> is a draft.
        is_cut = begin >= 0 and said != text and not self._is_whole(text[begin : text.find("</think>", begin)])
        return self._begin(said) >= 0 or is_cut

    def lead(self, text: str, *, opened: bool, calls: bool) -> str:
        rest = text.rpartition("</think>")[2]
        thinks = rest.lstrip().startswith("<think>") or (opened and rest == text)
        if not calls and self.calls == "native":
            return "</think>\n" if thinks else ""
        return f"</think>\n{self.mark}" if thinks else f"\n{self.mark}" if text else self.mark

    def read(self, text: str, token_ids: Sequence[int] = (), logprobs: Sequence[float] = ()) -> Action:
        action = self.read_thought(text, token_ids, logprobs)
        try:
            return replace(action, call=self._call(self._after_thinking(text)))
        except (ValueError, RecursionError) as error:
            return replace(action, error=str(error))

    def read_thought(self, text: str, token_ids: Sequence[int] = (), logprobs: Sequence[float] = ()) -> Action:
        call_text = self._after_thinking(text)
        begin = self._begin(call_text)
        if begin < 0:  # without a call, a JSON turn is all thought, and a native turn is a text to say
            begin = len(call_text) if self.calls == "named" else 0
        thinking = text[: len(text) - len(call_text) + begin]
        return Action(text, "", _bare(thinking), tuple(token_ids), tuple(logprobs))

    def _after_thinking(self, text: str) -> str:
        """The text after the thought; empty while the thought is unfinished. A call in a thought does not count, and a
        ``</think>`` in an argument of a call ends no thought."""
        rest = text.rpartition("</think>")[2]
        if rest != text and self._begin(rest) < 0:
            whole = text.partition("</think>")[2] if text.lstrip().startswith("<think>") else text
            begin = self._begin(whole)
            if begin >= 0 and self._is_whole(whole[begin:]):
                return whole
        return "" if rest.lstrip().startswith("<think>") else rest

    def _is_whole(self, text: str) -> bool:
        """Whether a text is one whole call."""
        try:
            self._call(text)
        except (ValueError, RecursionError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class JsonAction(AfterThinking):
    """A thought, then ``<action>{"when": ..., "which": ..., "how": {...}}</action>``.

    ``when`` says whether a tool is called. If true, ``which`` is the tool's name and ``how`` its arguments. If false,
    ``which`` is null and ``how`` is ``{"text": ...}``, the text to say. So three decisions can be judged separately:
    when to call, which tool, and with which arguments.
    """

    calls: ClassVar[Literal["named"]] = "named"

    @property
    def mark(self) -> str:
        return "<action>"

    def instructions(self, tools: Sequence[Tool]) -> str:
        text = 'To say TEXT, end your turn with <action>{"when": false, "which": null, "how": {"text": TEXT}}</action>.'
        call = 'To call a tool, end your turn with <action>{"when": true, "which": NAME, "how": ARGUMENTS}</action>.'
        return "\n".join((TASK, "Think first.", *((call, text, *tool_listing(tools)) if tools else (text,))))

    def rules(self, tools: Sequence[Tool], mark_term: Callable[[str], str]) -> str:
        if tools:
            calls = call_rules(tools, ('{"when": true, "which": ', ', "how": ', "}"))
        else:
            text = {"type": "string", "pattern": r"\S"}
            prefix = json.dumps('{"when": false, "which": null, "how": {"text": ')
            calls = [f"call: {prefix} said {json.dumps('}}')}", f"said: %json {written_json(text)}"]
        return after_thought_rules(calls, mark_term, self.mark, "</action>")

    def write(self, thought: str, call: str | ToolCall) -> str:
        if isinstance(call, str):
            parts: dict[str, object] = {"when": False, "which": None, "how": {"text": call}}
        else:
            parts = {"when": True, "which": call.name, "how": call.arguments}
        action = f"{self.mark}{written_json(parts)}</action>"
        return f"{thought}\n{action}" if thought else action

    def _begin(self, text: str) -> int:
        return text.find(self.mark)

    def _call(self, output: str) -> str | ToolCall:
        when, which, how = _parts(json_between(output, self.mark, "</action>"), "when", "which", "how")
        if not isinstance(when, bool):
            raise ValueError("when must be true or false")
        if when:
            return tool_call(which, how)
        if which is not None:
            raise ValueError("which must be null where when is false")
        (text,) = _parts(how, "text")
        if not isinstance(text, str) or not text.strip():
            raise ValueError("text must be a text that is not empty")
        return text.strip()


def call_rules(tools: Sequence[Tool], spelling: tuple[str, str, str], mark: str = "") -> list[str]:
    """The rule ``call`` and the rules that it uses.

    Args:
        spelling: as in ``_SPELLINGS``.
        mark: if given, a call may also consist of the tool's name, this mark and the arguments.
    """
    before, between, after = spelling
    ways, schemas = list[str](), list[str]()
    for index, tool in enumerate(tools):
        ways.append(f"{json.dumps(before + written_json(tool.name) + between)} arguments_{index} {json.dumps(after)}")
        if mark:
            ways.append(f"{json.dumps(tool.name)} {mark} arguments_{index}")
        schemas.append(schema_rule(index, tool, BLANKS))
    return [f"call: {' | '.join(ways)}", *schemas]


def schema_rule(index: int, tool: Tool, blanks: str) -> str:
    """The rule of a tool's arguments.

    Args:
        blanks: regular expression of the blanks allowed between the parts.
    """
    schema = {"type": "object", "x-guidance": {"whitespace_pattern": blanks}} | dict(tool.parameters)
    return f"arguments_{index}: {json_rule(schema)}"


def json_rule(schema: Mapping[str, object]) -> str:
    """The term for JSON of a schema. Integers are limited to the 64 bits that a stored tree can hold."""
    return f"%json {written_json(_bounded(schema))}"


def _bounded(schema: object) -> object:
    if isinstance(schema, list | tuple):
        return [_bounded(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    value_keys = ("enum", "const", "default", "examples")  # these keys hold values, not schemas
    bounded = {key: each if key in value_keys else _bounded(each) for key, each in schema.items()}
    kind = bounded.get("type")
    is_integer = kind == "integer" or (isinstance(kind, list) and "integer" in kind)
    return {"minimum": -_MOST_INTEGER, "maximum": _MOST_INTEGER} | bounded if is_integer else bounded


def after_thought_rules(calls: Sequence[str], mark_term: Callable[[str], str], mark: str, end: str = "") -> str:
    """Rules of a turn that has a thought, in plain text or in tags, and then a call between ``mark`` and ``end``."""
    outside = rf"& ~/\s*<think>{ANY}/"
    rest = rf"/\n?/ call /\n?/ {mark_term(end)}" if end else "/ ?/ call"
    if _is_token(mark_term(mark)):
        turn = [f"turn: thinking? THOUGHT {mark_term(mark)} {rest}", f"THOUGHT: /{ANY}/ {outside}"]
    else:
        turn = [f"turn: thinking? thought {rest}", f"thought[lazy]: /{ANY}{re.escape(mark)}/ {outside}"]
    return "\n".join((*turn, thinking_rule(mark_term), *calls))


def thinking_rule(mark_term: Callable[[str], str]) -> str:
    begin, end = mark_term("<think>"), mark_term("</think>")
    if _is_token(begin):
        return rf"thinking: /[ \n]?/ {begin} /{ANY}/ {end}"
    return rf"thinking[lazy]: /[ \n]?<think>{ANY}<\/think>/"


def _is_token(term: str) -> bool:
    return term.startswith("<[")


def named_call(value: object, key: str) -> ToolCall:
    return tool_call(*_parts(value, "name", key))


def tool_call(name: object, arguments: object) -> ToolCall:
    if not isinstance(name, str) or not name:
        raise ValueError("the tool must be named by a text")
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments of {name} must be an object")
    return ToolCall(name, arguments)


def _parts(value: object, *keys: str) -> list[object]:
    """The values of a JSON object that must have exactly these keys."""
    if not isinstance(value, dict) or set(value) != set(keys):
        raise ValueError(f"write a JSON object of {', '.join(keys)}")
    return [value[key] for key in keys]


def json_between(text: str, mark: str, end: str) -> object:
    """The JSON between ``mark`` and ``end``."""
    inner = enclosed(text, mark, end)
    try:
        return read_json(inner)
    except ValueError:
        if mark in inner:
            raise ValueError(f"there is more than one {mark}") from None
        raise


def enclosed(text: str, mark: str, end: str) -> str:
    """What is between the first ``mark`` and the last ``end``, so that an argument may contain either; nothing may
    follow ``end``."""
    _, found, rest = text.partition(mark)
    inner, closed, after = rest.rpartition(end)
    if not found:
        raise ValueError(f"there is no {mark}")
    if not closed:
        raise ValueError(f"{mark} is not closed")
    if after.strip():
        raise ValueError(f"something follows {end}")
    return inner


def read_json(text: str) -> object:
    """Parse JSON strictly: refuse duplicate keys, NaN, and values that a stored tree cannot hold."""
    try:
        value = json.loads(text, object_pairs_hook=_unique)
        orjson.dumps(value)  # refuses integers beyond 64 bits and unpaired surrogates
        orjson.loads(text)  # refuses NaN and numbers that are too large
    except json.JSONDecodeError as error:
        raise ValueError(f"the call is no JSON: {error}") from error
    except orjson.JSONEncodeError as error:
        raise ValueError(f"the call cannot be passed on: {error}") from error
    _require_shallow(value)
    return value


def _require_shallow(value: object, depth: int = 0) -> None:
    if depth > _MOST_NESTED:
        raise ValueError(f"the call is nested more than {_MOST_NESTED} deep")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _require_shallow(inner, depth + 1)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def written_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def tool_listing(tools: Sequence[Tool]) -> list[str]:
    lines = [f"- {tool.name}: {tool.description} {written_json(tool.parameters)}" for tool in tools]
    return ["The tools, with the JSON schema of their arguments:", *lines]


def arguments_of(tool: Tool) -> tuple[Mapping[str, object], Sequence[str]]:
    """The schema of each argument, keyed by its name, and the names of the required arguments."""
    schemas, required = tool.parameters.get("properties"), tool.parameters.get("required")
    return schemas if isinstance(schemas, dict) else {}, required if isinstance(required, list | tuple) else ()


def _as_text(tool: Tool) -> str:
    """A line that describes a tool and its call as text, in the form that ``envs/calls.py`` reads: ``name[argument]``,
    or with JSON if arguments are optional."""
    schemas, required = arguments_of(tool)
    if len(schemas) <= 1:
        call = f"{tool.name}[{', '.join(schemas)}]" if schemas else tool.name
    elif set(schemas) == set(required):
        call = f"{tool.name}[{', '.join(required)}]"
    else:
        call = f"{tool.name} {{{', '.join(f'{written_json(key)}: ...' for key in schemas)}}}"
    is_constrained = any(isinstance(schema, dict) and set(schema) - {"type", "title"} for schema in schemas.values())
    return f"- {call}: {tool.description}{f' {written_json(schemas)}' if is_constrained or call[-1] == '}' else ''}"


def _bare(thinking: str) -> str:
    return thinking.replace("<think>", "").replace("</think>", "").strip()

"""Reads transcripts of other agents as trees of one path: OpenAI's messages.

A part of a message is read as what it is: a text, a thought, a call, or the answer of a tool. A turn of the agent that
holds anything else is unfit and is not imitated. A transcript that cannot be read costs itself, not its file.
"""

import codecs
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from treeagent.generators.turn import Grammar
from treeagent.search.node import Edge, Node, Tree
from treeagent.store import regular
from treeagent.types import Message, Role, State, Task, ToolCall, UserError, storable

Json = dict[str, Any]
_ROLES = {role: role for role in ("system", "user", "assistant", "tool")} | {"developer": "system"}
_LATER: Mapping[str, Role] = {"system": "system", "user": "person", "tool": "user"}
"""The role of a message after the first turn. The answer of a tool is an observation, which has the role "user"."""
_TEXTS = ("text", "input_text", "output_text")
_THOUGHTS = ("reasoning", "thinking")
_CALLS = ("tool_call", "tool_use")
_ANSWERS = ("tool_call_response", "tool_result")


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    """A message of a transcript."""

    role: str
    """"system", "user", "assistant" or "tool"."""
    content: str
    thought: str = ""
    calls: tuple[tuple[str, ToolCall], ...] = ()
    """(id, call) of each tool call in an assistant's message."""
    answers: str = ""
    """In a tool's message, the id of the call that it answers."""
    unfit: str = ""
    """Why a message of the assistant cannot be imitated; empty if it can."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """One conversation of an agent."""

    task_id: str
    messages: tuple[TranscriptMessage, ...]
    reward: float | None
    """Return of the episode; None if it is not stated."""
    place: str = ""
    """Where it stands in its file, such as "line 3"."""


def read_transcripts(path: Path) -> tuple[list[Transcript], list[str]]:
    """Read the transcripts in a file of JSON or JSON lines: objects with OpenAI's ``messages``, or lists of such
    messages. Beside ``messages`` there may be ``reward`` (or ``score``) and ``task_id`` (or ``id``). Returns also a
    sentence about each value that is no transcript."""
    found, left_out = list[Transcript](), list[str]()
    for place, text, value in _values(path):
        try:
            found.append(_from_openai(value if text is None else orjson.loads(text), len(found), place))
        except UserError as error:
            left_out.append(f"{place}: {error}")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            left_out.append(f"{place}: this is no transcript ({type(error).__name__} {error!s:.80})")
    return found, left_out


def transcript_tree(transcript: Transcript, grammar: Grammar) -> Tree:
    """Convert a transcript to a tree of one path, with texts and without token ids.

    A message of the assistant that calls several tools becomes one step per call. The last step ends the task and has
    the reward.
    """
    messages = transcript.messages
    first = next((index for index, each in enumerate(messages) if each.role == "assistant"), None)
    if first is None:
        raise UserError("it holds no step of the assistant: leave it out")
    if first == 0:
        raise UserError("no message of the user stands before the assistant's first step: begin with the task")
    opening = [Message("system" if each.role == "system" else "user", each.content) for each in messages[:first]]
    task = Task(transcript.task_id, next((each.content for each in opening if each.role == "user"), ""))
    root = node = Node(State(task, tuple(opening)))
    for turn, follow in _turns(messages[first:]):
        for number, (step, answers) in enumerate(_steps(turn, follow)):
            content = turn.content if step and number == 0 else ""
            thought = "\n".join(filter(None, (turn.thought, content))) if number == 0 else ""
            text = grammar.write(thought, turn.content if step is None else step)
            action, unfit = grammar.read(text), turn.unfit
            if step is not None and isinstance(action.call, ToolCall) and action.call != step:
                unfit = unfit or "the format cannot express this call"
            if unfit:
                action = replace(action, call="", error=unfit)
            conversation = (*node.state.messages, Message("assistant", text), *answers)
            child = Node(State(task, conversation), invalid=bool(action.error))  # such a turn is not imitated
            reward = transcript.reward or 0.0
            node.edges.append(Edge(action, 1.0, 1, reward, 0.0, child))
            node = child
    node.terminated, node.state = True, State(task, node.state.messages, ended=True)
    tree = Tree(task, 0, root)
    *_, (path, _) = tree.walk()
    path[-1].reward = transcript.reward
    return tree


def _turns(
    messages: Sequence[TranscriptMessage],
) -> Iterator[tuple[TranscriptMessage, list[TranscriptMessage]]]:
    """Each message of the assistant with those that follow it."""
    starts = [index for index, each in enumerate(messages) if each.role == "assistant"]
    for start, end in zip(starts, [*starts[1:], len(messages)], strict=True):
        yield messages[start], list(messages[start + 1 : end])


def _steps(turn: TranscriptMessage, follow: Sequence[TranscriptMessage]) -> list[tuple[ToolCall | None, list[Message]]]:
    """The calls of a turn, or None for a turn without a call, each with the messages that follow it.

    If the calls have different ids, an answer follows the call that it names; otherwise the answers follow the calls in
    their order, if there are as many. All other messages follow the last call.
    """
    steps: list[tuple[ToolCall | None, list[Message]]] = [(call, []) for _, call in turn.calls] or [(None, [])]
    places = {name: number for number, (name, _) in enumerate(turn.calls) if name}
    answers = [each for each in follow if each.role == "tool"]
    in_order = len(places) < len(turn.calls) and len(answers) == len(turn.calls)
    order = iter(range(len(answers)))
    for each in follow:
        last = len(steps) - 1
        answered = each.role == "tool" and bool(turn.calls)
        place = next(order) if answered and in_order else places.get(each.answers, last) if answered else last
        steps[place][1].append(Message(_LATER[each.role], each.content))
    return steps


def _values(path: Path) -> Iterator[tuple[str, bytes | None, Any]]:
    """The values of a file, each with its place in words: a line of text to parse, or a value that is parsed."""
    content = regular(path).read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        whole = orjson.loads(content)
    except orjson.JSONDecodeError:
        for number, line in enumerate(content.split(b"\n"), start=1):
            if line.strip():
                yield f"line {number}", line, None
        return
    if isinstance(whole, list) and not any(isinstance(each, dict) and "role" in each for each in whole):
        for number, each in enumerate(whole, start=1):  # a list of transcripts; a list of messages is one of them
            yield f"transcript {number}", None, each
    else:
        yield "line 1", None, whole


def _from_openai(value: object, number: int, place: str) -> Transcript:
    row: Json = value if isinstance(value, dict) else {"messages": value}
    messages = tuple(message for each in row["messages"] for message in messages_of(each))
    name = _first(row, "task_id", "id")
    task_id = f"imported-{number}" if name is None else storable(str(name))
    return Transcript(task_id, messages, _reward(_first(row, "reward", "score")), place)


def _first(row: Json, *keys: str) -> Any:
    """The first value of these keys that is not None; None if there is none."""
    return next((row[key] for key in keys if row.get(key) is not None), None)


def _reward(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"the reward {value!r:.40} is no finite number")
    return float(value)


def messages_of(value: Any) -> Iterator[TranscriptMessage]:
    """Convert a message of either kind: its content or parts, and OpenAI's fields beside them. Answers of tools among
    the parts become messages of their own, before the rest."""
    if (role := _ROLES.get(str(value.get("role")))) is None:
        raise UserError(f"the role {value.get('role')!r:.40} is unknown: give one of {', '.join(_ROLES)}")
    texts, thoughts, unfit = list[str](), list[str](), ""
    calls, answered = list[tuple[str, ToolCall]](), list[TranscriptMessage]()
    if (thought := _first(value, "reasoning_content", "reasoning")) is not None:
        thoughts.append(_text_of(thought))
    for part in _parts(value.get("content")):
        kind = part.get("type", "text" if "text" in part else None)
        if kind in _TEXTS:
            texts.append(_text_of(_first(part, "text", "content")))
        elif kind in _THOUGHTS:
            thoughts.append(_text_of(_first(part, kind, "content", "text")))
        elif kind in _CALLS:
            calls.append((str(part.get("id") or ""), _call(part.get("name"), _first(part, "arguments", "input"))))
        elif kind in _ANSWERS:
            answer, name = _first(part, "response", "result", "content"), _first(part, "id", "tool_use_id")
            answered.append(TranscriptMessage("tool", _text_of(answer), answers=str(name or "")))
        else:
            texts.append(f"[{kind or 'part'} left out]")
            unfit = f"a part of the kind {kind!r:.40} is no text, thought or call" if role == "assistant" else ""
    if value.get("refusal"):
        unfit = "it is a refusal"
    listed = [(each.get("id"), each.get("function", each)) for each in value.get("tool_calls") or ()]
    calls += [(str(name or ""), _call(function["name"], function.get("arguments"))) for name, function in listed]
    content, thought = "\n".join(texts), "\n".join(thoughts)
    if role == "assistant" and not thought and content.lstrip().startswith("<think>") and "</think>" in content:
        thought, _, content = (part.strip() for part in content.lstrip().removeprefix("<think>").partition("</think>"))
    yield from answered
    if not answered or content or calls or thought or unfit:
        name = str(value.get("tool_call_id") or "")
        yield TranscriptMessage(role, content, thought, tuple(calls), name, unfit)


def _parts(value: object) -> list[Json]:
    if value is None:
        return []
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list):
        raise UserError(f"the content {value!r:.40} is neither a text nor a list of parts")
    return [each if isinstance(each, dict) else {"type": "text", "text": str(each)} for each in value]


def _text_of(value: object) -> str:
    """A text, or the texts of a list of parts. Any other value is written as JSON."""
    if value is None:
        return ""
    if isinstance(value, list) and value and all(isinstance(each, dict) and "text" in each for each in value):
        return "\n".join(_text_of(each["text"]) for each in value)
    return storable(value) if isinstance(value, str) else orjson.dumps(value).decode()


def _call(name: object, arguments: Any) -> ToolCall:
    try:
        read = (orjson.loads(arguments) if isinstance(arguments, str) and arguments else arguments) or {}
    except orjson.JSONDecodeError:
        read = None
    if not isinstance(name, str) or not name or not isinstance(read, dict):
        raise UserError(f"this is no call of a tool: {name!r:.40} with the arguments {arguments!r:.60}")
    return ToolCall(storable(name), read)

"""Reads transcripts of other agents (OpenAI's messages, or OpenTelemetry GenAI spans in OTLP's JSON) as trees of one
path."""

import codecs
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from treeagent.generators.grammar import Grammar
from treeagent.search.node import Edge, Node, Tree
from treeagent.store import regular
from treeagent.types import Message, State, Task, ToolCall, UserError, storable

Json = dict[str, Any]


class _Unreadable(ValueError):
    """A value is no transcript. The message gives the reason; callers put the file and line before it."""


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


@dataclass(frozen=True, slots=True)
class Transcript:
    """One conversation of an agent."""

    task_id: str
    messages: tuple[TranscriptMessage, ...]
    reward: float | None
    """Return of the episode; None if it is not stated."""


def read_transcripts(path: Path) -> list[Transcript]:
    """Read the transcripts in a file of JSON or JSON lines.

    Each value is an object with OpenAI's ``messages``, a list of such messages, or an object with OTLP's
    ``resourceSpans``. Beside ``messages`` there may be ``reward`` (or ``score``) and ``task_id`` (or ``id``).

    Raises:
        UserError: a value is none of these; the message names its line, or its number in a list.
        StoreError: the path is not a regular file.
    """
    found: list[Transcript] = []
    spans: dict[str, list[Json]] = {}
    for place, value in _values(path):
        try:
            if isinstance(value, dict) and "resourceSpans" in value:
                for span in _spans(value):
                    spans.setdefault(str(span.get("traceId", "")), []).append(span)
            else:
                found.append(_from_openai(value, len(found)))
        except _Unreadable as error:
            raise UserError(f"{path}, {place}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path}, {place}: this is no transcript ({type(error).__name__} {error})") from None
    for trace, members in spans.items():
        try:
            found.append(_from_spans(trace, members))
        except _Unreadable as error:
            raise UserError(f"{path}, trace {trace[:40]}: {error}") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}, trace {trace[:40]}: {type(error).__name__} {error}") from None
    if not found:
        raise UserError(f"{path} holds no transcript: give JSON lines with messages, or OTLP's JSON")
    return found


def transcript_tree(transcript: Transcript, grammar: Grammar) -> Tree:
    """Convert a transcript to a tree of one path, with texts and without token ids.

    A message of the assistant that calls several tools becomes one step per call. The last step ends the task and has
    the reward. If the transcript begins with texts of the assistant and then the user writes, these texts are no steps.

    Raises:
        UserError: there is no step, or nothing that the first step answers.
    """
    messages = _greeted(transcript)
    first = next((index for index, each in enumerate(messages) if each.role == "assistant"), None)
    if first is None:
        raise UserError(f"transcript {transcript.task_id!r} holds no step of the assistant: leave it out")
    if first == 0:
        raise UserError(
            f"transcript {transcript.task_id!r} has no message of the user before the assistant's first step: begin it "
            "with the task as a message of the role user"
        )
    opening = tuple(map(_message, messages[:first]))
    prompt = next((each.content for each in opening if each.role == "user"), "")
    task = Task(transcript.task_id, prompt)
    root = node = Node(State(task, opening))
    index = first
    while index < len(messages):
        turn, index = messages[index], index + 1
        follow = []
        while index < len(messages) and messages[index].role != "assistant":
            follow.append(messages[index])
            index += 1
        steps = turn.calls or (None,)
        for number, step in enumerate(steps):
            last = number == len(steps) - 1
            thought = "\n".join(filter(None, (turn.thought, turn.content if step else ""))) if number == 0 else ""
            text = grammar.write(thought, turn.content if step is None else step[1])
            action = grammar.read(text)
            if step is not None and isinstance(action.call, ToolCall) and action.call != step[1]:
                action = replace(action, call="", error="the format cannot express this call")
            answers = [each for each in follow if _follows(each, step, turn, last=last)]
            conversation = (*node.state.messages, Message("assistant", text), *map(_message, answers))
            child = Node(State(task, conversation), invalid=bool(action.error))  # such a turn is not imitated
            node.edges.append(Edge(action, 1.0, 1, 0.0, 0.0, child))
            node = child
    node.terminated, node.state = True, State(task, node.state.messages, ended=True)
    tree = Tree(task, 0, root)
    path = [edge for each in tree.nodes() for edge in each.edges]
    path[-1].reward = transcript.reward
    for edge in path:
        edge.value_sum = transcript.reward or 0.0
    return tree


def _greeted(transcript: Transcript) -> list[TranscriptMessage]:
    """The messages. If the assistant begins, for example with a greeting, system messages state what it said, because
    many chat templates do not let the assistant begin."""
    messages = list(transcript.messages)
    asked = next((index for index, each in enumerate(messages) if each.role != "assistant"), len(messages))
    greeting = messages[:asked]
    if asked == len(messages) or messages[asked].role != "user" or any(each.calls for each in greeting):
        return messages
    told = (TranscriptMessage("system", f"You began the conversation with: {each.content}") for each in greeting)
    return [*told, *messages[asked:]]


def _follows(
    message: TranscriptMessage, step: tuple[str, ToolCall] | None, turn: TranscriptMessage, *, last: bool
) -> bool:
    """Whether a message follows this step of a turn. A message with the id of one of the turn's calls follows that
    call; any other message follows the turn's last step."""
    known = {name for name, _ in turn.calls if name}
    if message.answers in known:
        return step is not None and message.answers == step[0]
    return last


def _message(message: TranscriptMessage) -> Message:
    # A tool's answer is an observation, which has the role "user".
    return Message(
        "system" if message.role == "system" else "assistant" if message.role == "assistant" else "user",
        message.content,
    )


def _values(path: Path) -> Iterator[tuple[str, object]]:
    """The values of a file, each with its place in words."""
    content = regular(path).read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        whole = orjson.loads(content)
    except orjson.JSONDecodeError:
        whole = None
    if isinstance(whole, list) and not any(isinstance(each, dict) and "role" in each for each in whole):
        for number, each in enumerate(whole, start=1):  # a list of transcripts; a list of messages is one of them
            yield f"transcript {number}", each
        return
    if whole is not None:
        yield "line 1", whole
        return
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            try:
                yield f"line {number}", orjson.loads(line)
            except orjson.JSONDecodeError:
                raise UserError(f"{path}, line {number} is not JSON: give JSON lines, or one JSON value") from None


def _from_openai(value: object, number: int) -> Transcript:
    row: Json = value if isinstance(value, dict) else {"messages": value}
    listed = row.get("messages")
    if not isinstance(listed, list) or not listed:
        raise _Unreadable("there is no list of messages: give OpenAI's messages, or OTLP's resourceSpans")
    messages = tuple(_openai_message(each) for each in listed)
    name = _first(row, "task_id", "id")
    task_id = f"imported-{number}" if name is None else storable(str(name))
    return Transcript(task_id, messages, _reward(_first(row, "reward", "score")))


def _first(row: Json, *keys: str) -> object:
    """The first value of these keys that is not None; None if there is none."""
    return next((row[key] for key in keys if row.get(key) is not None), None)


def _reward(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _Unreadable(f"the reward {value!r:.40} is no finite number")
    return float(value)


_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",  # OpenAI's older name
}


def _openai_message(value: Any) -> TranscriptMessage:
    if not isinstance(value, dict):
        raise _Unreadable(f"the message {value!r:.40} is no object")
    if (role := _ROLES.get(str(value.get("role")))) is None:
        raise _Unreadable(f"the role {value.get('role')!r:.40} is unknown: give one of {', '.join(_ROLES)}")
    thought = value.get("reasoning_content") or value.get("reasoning")
    thought, content = storable(thought) if isinstance(thought, str) else "", _content(value.get("content"))
    if role == "assistant" and not thought and content.lstrip().startswith("<think>") and "</think>" in content:
        thought, _, content = (part.strip() for part in content.lstrip().removeprefix("<think>").partition("</think>"))
    listed = [(call.get("id"), call.get("function", call)) for call in value.get("tool_calls") or ()]
    if isinstance(older := value.get("function_call"), dict):
        listed.append((None, older))
    calls = tuple((str(key or ""), _call(function["name"], function.get("arguments"))) for key, function in listed)
    return TranscriptMessage(role, content, thought, calls, str(value.get("tool_call_id") or ""))


def _content(value: object) -> str:
    """The text of a message. Parts that are no text, such as images, become a note."""
    if value is None:
        return ""
    if isinstance(value, str):
        return storable(value)
    if not isinstance(value, list):
        raise _Unreadable(f"the content {value!r:.40} is neither a text nor a list of parts")
    parts = [each if isinstance(each, dict) else {"type": "text", "text": str(each)} for each in value]
    return "\n".join(
        storable(str(part["text"])) if "text" in part else f"[{part.get('type', 'part')} left out]" for part in parts
    )


def _call(name: object, arguments: object) -> ToolCall:
    if not isinstance(name, str) or not name:
        raise _Unreadable(f"a call names no tool but {name!r:.40}")
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments or "{}")
        except orjson.JSONDecodeError:
            raise _Unreadable(f"the arguments of a call of {name:.40} are no JSON: {arguments!r:.60}") from None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise _Unreadable(f"the arguments of a call of {name:.40} are no object: {arguments!r:.60}")
    return ToolCall(storable(name), arguments)


def _spans(value: Json) -> Iterator[Json]:
    for resource in value["resourceSpans"]:
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                read = {each["key"]: _value(each["value"]) for each in span.get("attributes", ())}
                for event in span.get("events", ()):  # older instrumentation stores the messages in events
                    for each in event.get("attributes", ()):
                        read.setdefault(each["key"], _value(each["value"]))
                yield {"traceId": span.get("traceId", ""), "start": int(span.get("startTimeUnixNano", 0)), "read": read}


def _value(value: Json) -> object:
    """The Python value of an attribute in OTLP's JSON."""
    for kind, held in value.items():
        match kind:
            case "intValue":
                return int(held)
            case "arrayValue":
                return [_value(each) for each in held.get("values", ())]
            case "kvlistValue":
                return {each["key"]: _value(each["value"]) for each in held.get("values", ())}
            case _:
                return held
    return None


def _from_spans(trace: str, spans: Sequence[Json]) -> Transcript:
    """The longest conversation of a trace: the input and output messages of the span with the most messages. Its reward
    is that of a span with the same conversation id, or else of a span without an id."""
    talks: list[tuple[int, int, object, list[TranscriptMessage]]] = []
    answers: dict[str, str] = {}
    last_answers: list[TranscriptMessage] = []
    rewards: dict[object, object] = {}
    for span in spans:
        read = span["read"]
        name, reward = read.get("gen_ai.conversation.id"), read.get("gen_ai.evaluation.score.value")
        if (reward := read.get("treeagent.reward", reward)) is not None:
            rewards[name] = reward
        last_answers += [
            message for each in _parsed(read.get("treeagent.last_answers", [])) for message in _otel_messages(each)
        ]
        if read.get("gen_ai.operation.name") == "execute_tool" and "gen_ai.tool.call.result" in read:
            answers[str(read.get("gen_ai.tool.call.id", ""))] = _text(read["gen_ai.tool.call.result"])
        if "gen_ai.input.messages" in read and "gen_ai.output.messages" in read:
            system = _parsed(read.get("gen_ai.system_instructions", []))
            conversation = [TranscriptMessage("system", _join(system))] if system else []
            for key in ("gen_ai.input.messages", "gen_ai.output.messages"):
                conversation += [message for each in _parsed(read[key]) for message in _otel_messages(each)]
            talks.append((len(conversation), span["start"], name, conversation))
    if not talks:
        raise _Unreadable(
            "no span holds gen_ai.input.messages and gen_ai.output.messages: let the instrumentation record contents"
        )
    *_, name, conversation = max(talks, key=lambda each: each[:2])
    names = {each["read"]["gen_ai.conversation.id"] for each in spans if "gen_ai.conversation.id" in each["read"]}
    if name is None and len(names) == 1:  # only the span of the whole conversation has the id
        [name] = names
    for call_id, _ in conversation[-1].calls:  # the results of the last calls are only in the spans of these calls
        if call_id in answers:
            conversation = [*conversation, TranscriptMessage("tool", answers[call_id], answers=call_id)]
    return Transcript(
        storable(str(name or trace)), (*conversation, *last_answers), _reward(rewards.get(name, rewards.get(None)))
    )


def _parsed(value: object) -> list[Any]:
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise _Unreadable(f"the messages {value!r:.60} are no JSON") from None
    if not isinstance(value, list):
        raise _Unreadable(f"the messages {value!r:.60} are no list")
    return value


def _otel_messages(value: Any) -> Iterator[TranscriptMessage]:
    """Convert a message of the semantic conventions. Its parts are texts, thoughts, tool calls and tool answers; each
    tool answer becomes a message of its own."""
    role, parts = _ROLES.get(str(value.get("role"))), value.get("parts", [])
    if role is None:
        raise _Unreadable(f"the role {value.get('role')!r:.40} is unknown: give one of {', '.join(_ROLES)}")
    answered = [part for part in parts if part.get("type") == "tool_call_response"]
    for part in answered:
        answer = part.get("response", part.get("result"))
        yield TranscriptMessage("tool", _text(answer), answers=str(part.get("id", "")))
    calls = tuple(
        (str(part.get("id", "")), _call(part.get("name"), part.get("arguments")))
        for part in parts
        if part.get("type") == "tool_call"
    )
    thought = _join(part for part in parts if part.get("type") in ("reasoning", "thinking"))
    content = _join(part for part in parts if part.get("type") == "text")
    if not answered or content or calls:
        yield TranscriptMessage(role, content, thought, calls)


def _join(parts: Iterable[Any]) -> str:
    return "\n".join(_text(part.get("content", "")) for part in parts)


def _text(value: object) -> str:
    return storable(value) if isinstance(value, str) else orjson.dumps(value).decode()

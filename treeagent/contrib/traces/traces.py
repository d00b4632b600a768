"""``treeagent traces``: a run's episodes or trees for other tools.

``chat`` has one line per path from the root to an end: messages in OpenAI's form, with the tools as TRL and others read
them. ``otlp`` has one line per such path in OTLP's JSON, by the semantic conventions of generative AI: a span of the
agent, and below it one span per turn and per tool call.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson
import typer

from treeagent.cli.options import RunFolder, Trust, require_trust
from treeagent.envs import make_env
from treeagent.envs.base import ToolSpec
from treeagent.envs.calls import as_call, read_call
from treeagent.generators.turn import openai_content, openai_tools
from treeagent.pipeline.folder import Run, RunError
from treeagent.pipeline.terminal import Terminal
from treeagent.search.node import Edge, Node, Tree, path_origin
from treeagent.search.record import from_record
from treeagent.store import read_as, replacing, shard_names, shards
from treeagent.types import Message, ToolCall

app = typer.Typer()
TraceFormat = Literal["chat", "otlp"]
Source = Literal["episodes", "trees"]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """The facts in a trace that do not come from the tree."""

    tools: Sequence[ToolSpec]
    """The environment's tools. Actions that are texts are parsed as calls of these; if empty, they stay texts."""
    model: str
    stage: str
    """Name of the tree's shards."""
    began: int
    """Time at which the first shard of this name was written, in nanoseconds since 1970."""


@app.command()
def traces(
    run_folder: RunFolder,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file of JSON lines to write.")],
    format: Annotated[
        TraceFormat,
        typer.Option(help="OpenAI's messages with tools, or OpenTelemetry GenAI spans."),
    ] = "chat",
    source: Annotated[
        Source, typer.Option("--from", help="The episodes of evaluations, or the searched training trees.")
    ] = "episodes",
    trust: Trust = False,
) -> None:
    """Write a run's episodes or trees as traces for other tools, one JSON line each.

    Reads RUN, builds its environment to get its tools, writes FILE.

    Example: treeagent traces runs/shop --format otlp --out shop.jsonl
    """
    run = Run.open(run_folder)
    require_trust(run.path / "config.toml", (), trust)
    environment = run.config.environment
    with closing(make_env(environment.name, environment.options)) as env:
        tools = env.tools()
    count = write_traces(run, out, format, source, tools)
    Terminal().print(f"{count:,} traces in {out}")


def write_traces(run: Run, out: Path, format: TraceFormat, source: Source, tools: Sequence[ToolSpec]) -> int:
    """Write the traces of a run's training trees or of its evaluation episodes as JSON lines, completely or not at all.
    Returns the number of lines."""
    make: Callable[[Tree, TraceFacts], Iterable[Json]] = {"chat": chat_rows, "otlp": otlp_rows}[format]
    folder = run.trees if source == "trees" else run.episodes
    names = run.collections() if source == "trees" else shard_names(folder)
    count = 0
    with replacing(out) as file:
        for name in names:
            checkpoint = run.recorded_checkpoint(name)
            began = shards(folder, name)[0].stat().st_mtime_ns
            facts = TraceFacts(tools, checkpoint.name if checkpoint else "", name, began)
            for tree in read_as(from_record, folder, name):
                for row in make(tree, facts):
                    file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
                    count += 1
        if not count:
            other = "trees" if source == "episodes" else "episodes"
            raise RunError(f"{run.path} holds no {source}: give --from {other}")
    return count


def ended_paths(tree: Tree) -> Iterator[tuple[Edge, ...]]:
    """All paths from the root to a node without tried actions, including paths that broke off."""
    for path, node in tree.walk():
        if path and not any(edge.child is not None for edge in node.edges):
            yield path


def total_reward(path: Sequence[Edge]) -> float | None:
    """The sum of the rewards of a path; None if the episode is not over at its end, or the last reward is unknown."""
    last = path[-1].child
    over = last is not None and last.final
    return sum(edge.reward or 0.0 for edge in path) if over and path[-1].reward is not None else None


def chat_rows(tree: Tree, facts: TraceFacts) -> Iterator[Json]:
    """One row per ended path: ``messages`` and ``tools`` in OpenAI's form, with the path's task, reward and origin."""
    tools = openai_tools(facts.tools)
    for path in ended_paths(tree):
        messages = [plain_message(message) for message in tree.root.state.messages]
        for turn in _turns(tree.root, path, facts):
            messages += _openai(turn)
        yield {
            "task_id": tree.task.id,
            "split": tree.task.split,
            "seed": tree.seed,
            "messages": messages,
            "tools": tools,
            "reward": total_reward(path),
            "origin": path_origin(path),
        }


@dataclass(frozen=True, slots=True)
class _Turn:
    """A whole turn, which may consist of several actions, and the messages that answered it."""

    thought: str
    text: str
    """The text of the turn; empty if it calls a tool."""
    call: ToolCall | None
    call_id: str
    answers: tuple[Message, ...]
    refused: bool
    edges: tuple[Edge, ...]


def _turns(root: Node, path: Sequence[Edge], facts: TraceFacts) -> Iterator[_Turn]:
    thoughts, edges, parent, number = list[str](), list[Edge](), root, 0
    for edge in path:
        edges.append(edge)
        if edge.thought:
            thoughts.append(edge.action.thought)
            parent = edge.child or parent
            continue
        action, child = edge.action, edge.child
        call: str | ToolCall = action.call
        if isinstance(call, str) and facts.tools and call:
            call = read_call(as_call(call, facts.tools), facts.tools)
        own = "" if action.error else action.thought  # the text of a malformed turn holds its thought
        thought = "\n".join(filter(None, (*thoughts, own)))
        tool_call = call if isinstance(call, ToolCall) else None
        text = "" if tool_call else action.text if action.error or not isinstance(action.call, str) else action.call
        answers = () if child is None else _added_messages(parent, child)
        yield _Turn(thought, text, tool_call, f"call_{number}", answers, bool(child and child.invalid), tuple(edges))
        thoughts, edges, parent, number = [], [], child or parent, number + 1


def _added_messages(parent: Node, child: Node) -> tuple[Message, ...]:
    """The messages that ``child`` adds to ``parent``'s conversation, without the assistant's."""
    fresh = child.state.messages[len(parent.state.messages) :]
    return tuple(message for message in fresh if message.role != "assistant")


def plain_message(message: Message) -> Json:
    """A message in OpenAI's form."""
    return {"role": "user" if message.role == "person" else message.role, "content": openai_content(message)}


def _openai(turn: _Turn) -> list[Json]:
    message: Json = {"role": "assistant", "content": turn.text}
    if turn.thought:
        message["reasoning_content"] = turn.thought  # the name that chat templates and servers of reasoning models use
    if turn.call is None:
        return [message, *map(plain_message, turn.answers)]
    function = {"name": turn.call.name, "arguments": _arguments(turn.call)}
    message["tool_calls"] = [{"id": turn.call_id, "type": "function", "function": function}]
    answers = [{"role": "tool", "tool_call_id": turn.call_id, "content": each.content} for each in turn.answers]
    # OpenAI's API and TRL take no image in an answer of a tool.
    images = [{"role": "user", "content": openai_content(each)[1:]} for each in turn.answers if each.images]
    return [message, *answers, *images]


def _arguments(call: ToolCall) -> str:
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def otlp_rows(tree: Tree, facts: TraceFacts) -> Iterator[Json]:
    """One line of TracesData per ended path. The times of the spans only express their order."""
    for number, path in enumerate(ended_paths(tree)):
        identity = [facts.stage, tree.task.id, tree.seed, number]
        spans = list[Json]()
        opening = [_otlp(plain_message(message)) for message in tree.root.state.messages]
        conversation = list(opening)
        for index, turn in enumerate(_turns(tree.root, path, facts)):
            said, *answers = map(_otlp, _openai(turn))
            chat = {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "treeagent",
                "gen_ai.request.model": facts.model,
                "gen_ai.input.messages": _text(conversation),
                "gen_ai.output.messages": _text([said | {"finish_reason": "tool_call" if turn.call else "stop"}]),
                "gen_ai.usage.output_tokens": sum(len(edge.action.token_ids) for edge in turn.edges),
            }
            spans.append(_span(identity, f"turn-{index}", f"chat {facts.model}".strip(), 3, chat))
            conversation += [said, *answers]
            if turn.call is None:
                continue
            answer = "\n".join(each.content for each in turn.answers)
            tool = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": turn.call.name,
                "gen_ai.tool.call.id": turn.call_id,
                "gen_ai.tool.call.arguments": _arguments(turn.call),
                "gen_ai.tool.call.result": answer,
            }
            refusal = answer if turn.refused else ""
            spans.append(_span(identity, f"tool-{index}", f"execute_tool {turn.call.name}", 1, tool, refusal))
        agent: Json = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "treeagent",
            "gen_ai.conversation.id": tree.task.id,
            "gen_ai.input.messages": _text(opening),
            "gen_ai.tool.definitions": _text([_tool(tool) for tool in facts.tools]),
            "treeagent.origin": path_origin(path),
            "treeagent.stage": facts.stage,
        }
        if (reward := total_reward(path)) is not None:
            agent["treeagent.reward"] = float(reward)
        root = _span(identity, "agent", "invoke_agent treeagent", 1, agent, tree.error)
        del root["parentSpanId"]
        for clock, span in enumerate([*spans, root], start=1):
            begin = 0 if span is root else clock
            span["startTimeUnixNano"] = str(facts.began + begin * 1_000_000)
            span["endTimeUnixNano"] = str(facts.began + clock * 1_000_000 + 999_999)
        scope = {"name": "treeagent", "version": version("treeagent")}
        resource = {"attributes": _attributes({"service.name": "treeagent"})}
        yield {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": [root, *spans]}]}]}


def _span(
    identity: Sequence[object], key: str, name: str, kind: int, attributes: Mapping[str, object], error: str = ""
) -> Json:
    ids = {
        "traceId": _hex(16, *identity),
        "spanId": _hex(8, *identity, key),
        "parentSpanId": _hex(8, *identity, "agent"),
    }
    status = {"status": {"code": 2, "message": error}} if error else {}
    return {**ids, "name": name, "kind": kind, "attributes": _attributes(attributes), **status}


def _otlp(message: Json) -> Json:
    """A message in OpenAI's form by the conventions of generative AI."""
    parts: list[Json] = []
    if thought := message.get("reasoning_content"):
        parts.append({"type": "reasoning", "content": thought})
    if message["role"] == "tool":
        parts.append({"type": "tool_call_response", "id": message["tool_call_id"], "response": message["content"]})
    elif isinstance(content := message["content"], list):  # without its images, which every later span would repeat
        parts += [{"type": "text", "content": part["text"]} for part in content if part["type"] == "text"]
    elif content:
        parts.append({"type": "text", "content": content})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = orjson.loads(function["arguments"])
        parts.append({"type": "tool_call", "id": call["id"], "name": function["name"], "arguments": arguments})
    return {"role": message["role"], "parts": parts}


def _text(value: object) -> str:
    return orjson.dumps(value).decode()


def _tool(tool: ToolSpec) -> Json:
    return {"type": "function", "name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


def _hex(size: int, *parts: object) -> str:
    return blake2b(orjson.dumps([str(part) for part in parts]), digest_size=size).hexdigest()


def _attributes(values: Mapping[str, object]) -> list[Json]:
    def typed(value: object) -> Json:
        if isinstance(value, float):
            return {"doubleValue": value}
        return {"intValue" if isinstance(value, int) else "stringValue": str(value)}

    return [{"key": name, "value": typed(value)} for name, value in values.items()]

"""Traces out and transcripts in: an export can be imported again, and files of other programs are read."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from command import treeagent

from treeagent.config import load_config
from treeagent.contrib.traces.imported import import_transcripts
from treeagent.contrib.traces.traces import TraceFacts, chat_rows, otlp_rows
from treeagent.contrib.traces.transcripts import Transcript, read_transcripts, transcript_tree
from treeagent.envs.base import ToolSpec
from treeagent.generators.turn import make_grammar
from treeagent.search.node import Tree
from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.types import Message, ToolCall, UserError

TOLD = TraceFacts((ToolSpec("look", "Look.", {"type": "object"}),), "qwen", "collect", 10**18)
GRAMMAR = make_grammar("tools")
CHAT = {
    "task_id": "t1",
    "reward": 1.0,
    "messages": [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "How is it?"}, {"type": "image_url", "image_url": "x"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "both at once",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}},
                {"id": "b", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "b", "content": "dark"},
        {"role": "tool", "tool_call_id": "a", "content": "grey\u2028"},
        {"role": "assistant", "content": "It is grey."},
    ],
}


def written(path: Path, *rows: object) -> Path:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def read(path: Path) -> list[Transcript]:
    """The transcripts of a file in which every value is one."""
    found, left_out = read_transcripts(path)
    assert not left_out
    return found


def steps(tree: Tree) -> list[tuple[object, str, list[str]]]:
    """The call, thought and answers of each step of a tree with a single path."""
    found, before = list[tuple[object, str, list[str]]](), len(tree.root.state.messages)
    for path, node in tree.walk():
        if path:
            answers = [each.content for each in node.state.messages[before + 1 :]]
            found.append((path[-1].action.call, path[-1].action.thought, answers))
            before = len(node.state.messages)
    return found


def test_openai_messages_with_parallel_calls_become_a_path(tmp_path: Path) -> None:
    [transcript] = read(written(tmp_path / "chat.jsonl", CHAT))
    tree = transcript_tree(transcript, GRAMMAR)
    opening = [(each.role, each.content) for each in tree.root.state.messages]
    assert opening == [("system", "Be short."), ("user", "How is it?\n[image_url left out]")]
    assert steps(tree) == [
        (ToolCall("look", {"at": "sky"}), "both at once", ["grey\u2028"]),
        (ToolCall("look", {}), "", ["dark"]),
        ("It is grey.", "", []),
    ]
    *_, last = tree.nodes()
    assert tree.task.id == "t1" and last.terminated
    assert [edge.reward for node in tree.nodes() for edge in node.edges] == [0.0, 0.0, 1.0]


LOOK = {"name": "look", "arguments": {"at": "sky"}}


@pytest.mark.parametrize(
    ("parts", "call", "thought", "fits"),
    [
        (
            [{"type": "thinking", "thinking": "grey"}, {"type": "text", "text": "It is grey."}],
            "It is grey.",
            "grey",
            True,
        ),
        ([{"type": "tool_use", "id": "t", "name": "look", "input": LOOK["arguments"]}], LOOK, "", True),
        ([{"type": "tool_call", "id": "t", **LOOK}], LOOK, "", True),
        ([{"type": "text", "text": "I see."}, {"type": "audio", "data": "x"}], None, "", False),
        ([{"type": "refusal", "refusal": "no"}], None, "", False),
    ],
)
def test_a_part_is_read_as_what_it_is_or_its_turn_is_unfit(
    tmp_path: Path, parts: list[Any], call: Any, thought: str, fits: bool
) -> None:
    answer = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "dark"}]}
    messages = [{"role": "user", "content": "How is it?"}, {"role": "assistant", "content": parts}, answer]
    done = import_transcripts(
        load_config(None, ["policy.format=tools"]),
        written(tmp_path / "in.jsonl", {"messages": messages, "reward": 1.0}),
        tmp_path / "run",
    )
    assert (done.trees, done.unfit) == (1, not fits)
    [tree] = read_as(from_record, tmp_path / "run" / "trees")
    [edge] = tree.root.edges
    assert edge.child is not None and edge.child.invalid is not fits
    assert edge.child.state.messages[-1] == Message("user", "dark")
    if fits:
        wanted = ToolCall(call["name"], call["arguments"]) if isinstance(call, dict) else call
        assert (edge.action.call, edge.action.thought) == (wanted, thought)


def test_what_goes_out_comes_back(tmp_path: Path) -> None:
    [transcript] = read(written(tmp_path / "in.jsonl", CHAT))
    tree = transcript_tree(transcript, GRAMMAR)
    [again] = read(written(tmp_path / "out.jsonl", *chat_rows(tree, TOLD)))
    back = transcript_tree(again, GRAMMAR)
    assert (steps(back), again.reward, back.task.id) == (steps(tree), 1.0, "t1")
    assert back.root.state.messages == tree.root.state.messages


def test_spans_of_an_episode_by_hand(tmp_path: Path) -> None:
    """Two calls and an answer: the agent's span, below it three turns and two tools, in the order of their ends."""
    [transcript] = read(written(tmp_path / "in.jsonl", CHAT))
    [row] = otlp_rows(transcript_tree(transcript, GRAMMAR), TOLD)
    agent, *spans = row["resourceSpans"][0]["scopeSpans"][0]["spans"]
    names = ["chat qwen", "execute_tool look", "chat qwen", "execute_tool look", "chat qwen"]
    assert agent["name"] == "invoke_agent treeagent" and [each["name"] for each in spans] == names
    assert {each["parentSpanId"] for each in spans} == {agent["spanId"]}
    assert [int(each["endTimeUnixNano"]) - 10**18 for each in (*spans, agent)] == [
        n * 10**6 + 999_999 for n in range(1, 7)
    ]
    told = {each["key"]: each["value"] for each in (*agent["attributes"], *spans[1]["attributes"])}
    assert told["treeagent.reward"] == {"doubleValue": 1.0}
    assert told["gen_ai.tool.call.result"] == {"stringValue": "grey\u2028"}
    assert orjson.loads(told["gen_ai.tool.call.arguments"]["stringValue"]) == {"at": "sky"}
    said = {each["key"]: each["value"] for each in spans[-1]["attributes"]}["gen_ai.output.messages"]["stringValue"]
    [last] = orjson.loads(said)
    assert last["parts"] == [{"type": "text", "content": "It is grey."}] and last["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "content, named",
    [
        ("", "holds no transcript"),
        ("no json", "line 1"),
        ('{"messages": []}', "line 1"),
        ('{"messages": [{"role": "robot", "content": "x"}]}', "robot"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "line 1, imported-0"),
        ('{"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]}', "f"),
        ('{"messages": [{"role": "assistant", "content": "x"}], "reward": "high"}', "high"),
        ('{"messages": [{"role": "user", "content": "x"}], "reward": 1' + "0" * 400 + "}", "line 1"),
    ],
)
def test_a_file_that_is_no_transcript_is_one_sentence(tmp_path: Path, content: str, named: str) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(content)
    with pytest.raises(UserError) as refused:
        import_transcripts(load_config(None, ["policy.format=tools"]), file, tmp_path / "run")
    assert named in str(refused.value) and "\n" not in str(refused.value) and not (tmp_path / "run").exists()


def test_a_bad_transcript_costs_itself_and_is_named(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    lines = (
        orjson.dumps(CHAT),
        b"no json",
        orjson.dumps({"id": "mute", "messages": [{"role": "user", "content": "?"}]}),
    )
    file.write_bytes(b"\n".join((*lines, orjson.dumps(CHAT))))
    done = treeagent("import", file, tmp_path / "run")
    assert done.returncode == 0 and "2 trees" in done.stdout and "2 transcripts are left out" in done.stdout
    assert "line 2: " in done.stdout and "line 3, mute: it holds no step" in done.stdout


@pytest.mark.slow
def test_transcripts_in_a_models_tokens_are_imitated(tmp_path: Path, finished_run: Path) -> None:
    base, settings = finished_run / "checkpoints" / "base", finished_run / "config.toml"
    out = tmp_path / "chats.jsonl"
    assert treeagent("traces", finished_run, "--from", "trees", "--out", out).returncode == 0
    run = tmp_path / "run"
    done = treeagent("import", out, run, "--config", settings, "--checkpoint", base)
    assert done.returncode == 0, done.stderr
    done = treeagent("update", "rft", base, "--trees", run, "--out", tmp_path / "new")
    assert done.returncode == 0 and (tmp_path / "new" / "checkpoints" / "rft").is_dir(), done.stderr

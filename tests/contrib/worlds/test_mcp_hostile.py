"""MCP servers that die, hang and lie lead to an error at the start."""

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from treeagent.contrib.worlds.adapters.mcp import McpEnv
from treeagent.types import Split, Task, UserError

pytest.importorskip("mcp", reason="the mcp extra is not installed")
pytestmark = pytest.mark.timeout(120)

SERVER = str(Path(__file__).with_name("hostile_server.py"))
TASKS: dict[Split, Sequence[Task]] = {"train": [Task("notes-0", "What is it?", data={"answer": "nothing"})]}
OBJECT = {"type": "object"}


class Serve(Protocol):
    def __call__(self, fault: str, given: object = None, *, seconds: float = 60.0) -> McpEnv: ...


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Serve]:
    """A function that starts the hostile server and resets it. All servers end with the test."""
    with contextlib.ExitStack() as started:

        def serve(fault: str, given: object = None, *, seconds: float = 60.0) -> McpEnv:
            needed = tmp_path / "given.json"
            needed.write_text(json.dumps(given))
            env = McpEnv([sys.executable, SERVER, fault, str(needed)], tasks=TASKS, seconds=seconds)
            started.callback(env.close)
            env.reset()
            return env

        yield serve


def tool(name: str = "echo", schema: object = OBJECT) -> dict[str, Any]:
    return {"name": name, "inputSchema": schema}


@pytest.mark.parametrize(
    ("tools", "named"),
    [
        ([tool(), tool()], "echo"),
        ([tool("Answer")], "Answer"),
        ([tool("\x1b[2J")], r"\x1b[2J"),
        ([tool("echo", {"type": "string"})], "inputSchema"),
        ([tool("echo", {"$ref": "http://127.0.0.1:1/schema"})], "inputSchema"),
        (7, "tools"),
    ],
)
def test_tools_that_an_agent_cannot_call_or_read_are_refused_in_a_sentence(
    served: Serve, tools: object, named: str
) -> None:
    with pytest.raises(UserError) as refused:
        served("tools", tools)
    sentence = str(refused.value)
    assert named in sentence and SERVER in sentence
    assert len(sentence) < 1000 and sentence.isprintable()


@pytest.mark.parametrize(
    ("fault", "given", "seconds", "named"),
    [
        ("dies", None, 60.0, "cause of death"),
        ("hangs at start", None, 0.5, "timed out"),
    ],
)
def test_a_server_that_does_not_start_is_named_with_its_first_cause(
    served: Serve, fault: str, given: object, seconds: float, named: str
) -> None:
    with pytest.raises(UserError) as refused:
        served(fault, given, seconds=seconds)
    assert SERVER in str(refused.value) and named in str(refused.value)
    assert str(refused.value).isprintable()

"""A real MCP server's tools as an environment."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from faulty_envs import children, gone

from treeagent.contrib.worlds.adapters.mcp import McpEnv
from treeagent.envs import EnvCrashed, EnvTimeout, Forkable, check_env
from treeagent.types import Split, Task, ToolCall

pytest.importorskip("mcp", reason="the mcp extra is not installed")
pytestmark = pytest.mark.timeout(900)

COMMAND = [sys.executable, str(Path(__file__).with_name("notes_server.py"))]
QUESTION = Task("notes-0", "Which country's capital is Oslo?", data={"answer": "Norway"})
TASKS: dict[Split, Sequence[Task]] = {"train": [QUESTION]}
READ = ("find", "read")


def notes() -> McpEnv:
    """A function as users write it, to name it as "module:notes"."""
    return McpEnv(COMMAND, tasks=TASKS, tools=READ, seconds=120)


@pytest.fixture(scope="module")
def started() -> Iterator[McpEnv]:
    """One server for the module, because a server takes seconds to start."""
    made = notes()
    yield made
    made.close()


@pytest.fixture
def env(started: McpEnv) -> McpEnv:
    started.reset(options={"task": QUESTION})
    return started


def test_its_tools_are_the_servers_and_answer(env: McpEnv) -> None:
    assert [tool.name for tool in env.tools()] == ["find", "read", "answer"]
    assert [tool.read_only for tool in env.tools()] == [True, True, False]
    assert env.tools()[0].description == "Find notes by a word."
    assert env.step("find[norway]")[0] == "oslo"
    assert env.step(ToolCall("find", {"word": "BIRD"}))[0] == "kiwi"
    assert env.step('read {"name": "oslo", "lines": 2}')[0] == "\n".join(["Oslo is the capital of Norway."] * 2)
    assert env.step("read[oslo]")[0] == "Oslo is the capital of Norway."
    assert env.step("answer[ norway ]") == ("answered", 1.0, True, False, {})
    assert env.verify() == 1.0
    assert env.step("find[bird]")[4] == {"tool_error": "the episode is over"}


@pytest.mark.slow
def test_read_only_tools_are_replayed_and_the_check_passes(env: McpEnv) -> None:
    assert env.snapshot_kind == "replay"
    other = notes()
    calls = ["find[norway]", "find[bird]", 'read {"name": "kiwi"}', 'read {"name": "x"}', "answer[Chile]"]
    report = check_env(env, QUESTION, other=other, actions=calls, branches=4, depth=3)
    other.close()
    assert report.passed, report.violations
    assert report.equal_branches == report.branches > 1
    fork = Forkable(env)
    fork.reset(QUESTION)
    fork.step("find[norway]")
    mark = fork.mark()
    fork.step("find[bird]")
    fork.goto(mark)
    assert fork.replayed_steps == 1


def test_only_read_only_and_idempotent_tools_are_replayed() -> None:
    repeatable = McpEnv(COMMAND, tasks=TASKS, tools=["find", "write"], seconds=120)
    assert repeatable.snapshot_kind == "replay"
    for _ in range(2):  # another server each time, so what was written is gone
        repeatable.reset()
        assert repeatable.step('write {"name": "a", "text": "b"}')[0] == "1 written"
    repeatable.close()
    changing = McpEnv(COMMAND, tasks=TASKS, tools=["find", "add"], seconds=120)
    assert changing.snapshot_kind == "none"
    fork = Forkable(changing)
    fork.reset(QUESTION)
    assert [fork.step("add[]")[0] for _ in range(2)] == ["1", "2"]
    mark = fork.mark()
    fork.step("add[]")
    with pytest.raises(ValueError, match="search it with a world model"):
        fork.goto(mark)
    changing.reset()
    assert changing.step("add")[0] == "1"
    changing.close()


def test_a_server_that_dies_or_hangs_costs_the_episode_and_the_next_goes_on() -> None:
    before = set(children())
    env = McpEnv(COMMAND, tasks=TASKS, tools=["find", "leave", "wait"], seconds=120)
    env.reset()
    with pytest.raises(EnvCrashed, match="ended in ToolCall"):
        env.step("leave[]")
    with pytest.raises(EnvCrashed, match="and with it the episode"):
        env.step("find[bird]")
    env.reset()
    env._seconds = 1.0
    with pytest.raises(EnvTimeout, match="took longer than 1 seconds"):
        env.step("wait[]")
    env._seconds = 120
    env.reset()
    assert env.step("find[bird]")[0] == "kiwi"
    servers = set(children()) - before
    assert len(servers) == 1
    env.close()
    assert all(gone(process) for process in servers)
    env.close()

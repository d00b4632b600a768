"""Hostile text in everything that can be printed: the terminal obeys no sequence in it, and no text is hidden."""

import io
import logging
import shlex
import subprocess
import sys
import traceback
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest
from command import Ended, treeagent

from treeagent.config import RunConfig
from treeagent.pipeline.folder import Run
from treeagent.search.node import Budget, Edge, Node, Tree
from treeagent.search.record import to_record
from treeagent.store import write_atomic, write_shard
from treeagent.types import Action, Message, State, Task, ToolCall
from treeagent.visible import guard_streams

ATTACK = (
    "\x1b[2J\x1b]0;owned\x07\x1b]8;;https://evil.example\x1b\\\x9b31m\x9d0;x\x9c\r\b\x7f\u202eevil\u2066\u200b\u3164"
)
"""Clears the screen, sets the window's title, makes a link, sets colours, overwrites text, reverses text and hides
characters."""


def orders(text: str) -> list[str]:
    """The characters of a text that a terminal would obey or that are invisible."""
    unseen = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    return [ascii(each) for each in text if each != "\n" and (unicodedata.category(each) in unseen or each == "\u3164")]


def attack(field: str) -> str:
    return f"{field}{ATTACK}{field}"


def hostile_tree() -> Tree:
    task = Task(attack("task"), attack("prompt"))
    messages = (Message("system", attack("system")), Message("user", task.prompt))
    root = Node(State(task, messages), value=0.5)

    def step(call: str | ToolCall, error: str = "") -> None:
        action = Action(attack("text"), call, attack("thought"), error=error)
        said = (*messages, Message("assistant", action.text), Message("user", attack("observation")))
        root.edges.append(Edge(action, 0.5, visits=2, child=Node(State(task, said))))

    step(attack("call"))
    step(ToolCall(attack("tool"), {attack("argument"): attack("value")}))
    step("", error=attack("malformed"))
    return Tree(task, 0, root, Budget(simulations=3), error=attack("error"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "run"
    row = {"policy": attack("policy"), "mode": "mcts", "success": 0.5, "tasks": 2, "errors": 1, "error": attack("died")}
    with Run.create(path, RunConfig(), resume=False) as made:
        write_shard(made.trees, "collect", 0, [to_record(hostile_tree())])
        made.finish(attack("stage"), {"alarms": [attack("alarm")]})
        write_atomic(made.results, orjson.dumps([row]))
    return path


def printed(*arguments: str | Path) -> Ended:
    ended = treeagent(*arguments)
    assert orders(ended.stdout) == orders(ended.stderr) == []
    return ended


def test_a_run_is_shown(run: Path) -> None:
    shown = printed("show", run).stdout
    assert all(word in shown.replace("\n", "") for word in ("policy", "died", "stage", "alarm", "task", r"\u202eevil"))


def test_a_tree_is_shown(run: Path) -> None:
    shown = printed("show", run, attack("task")).stdout
    fields = ("task", "prompt", "call", "tool", "argument", "malformed", "thought", "observation", "error")
    assert [field for field in fields if rf"{field}\x1b[2J" not in shown] == []
    assert r"value\u001b[2J" in shown  # escaped by JSON


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", attack("nowhere")),
        ("envs", "check", attack("environment")),
        ("show", "nowhere", f"--{ATTACK}"),
        (ATTACK,),
    ],
)
def test_a_refusal_repeats_its_value_visibly(arguments: tuple[str, ...]) -> None:
    ended = printed(*arguments)
    assert ended.returncode == 2 and r"\x1b" in ended.stderr


@contextmanager
def guarded() -> Iterator[io.StringIO]:
    """What a process writes to standard error while its streams are guarded."""
    before, stream = (sys.stdout, sys.stderr), io.StringIO()
    sys.stdout, sys.stderr = io.StringIO(), stream
    try:
        guard_streams()
        yield stream
    finally:
        sys.stdout, sys.stderr = before


def test_what_others_print_is_visible() -> None:
    with guarded() as stream:
        print_by_other_ways()
    assert orders(stream.getvalue()) == []
    for field in ("traceback", "warning", "log"):
        assert rf"{field}\x1b[2J" in stream.getvalue()


def print_by_other_ways() -> None:
    try:
        raise ValueError(attack("traceback"))
    except ValueError:
        traceback.print_exc()
    sys.stderr.write(warnings.formatwarning(attack("warning"), UserWarning, "file.py", 1))
    handler = logging.StreamHandler()
    handler.emit(logging.LogRecord("library", logging.ERROR, "file.py", 1, attack("log"), None, None))


MAIN = "from treeagent.__main__ import main; main()"


def process(words: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script in which ``treeagent`` is the command line. The last line of its output is the exit code."""
    script = f'treeagent() {{ {shlex.quote(sys.executable)} -c {shlex.quote(MAIN)} "$@"; }}\n{words}'
    return subprocess.run(["bash", "-c", script], capture_output=True, encoding="latin-1")

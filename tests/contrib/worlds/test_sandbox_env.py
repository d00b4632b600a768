"""Sandboxes that branch: the five verbs, repair tasks, checks that cannot be forged, hostile commands."""

import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from treeagent.contrib.worlds.sandbox import PythonBox, Ran, SandboxEnv, SandboxOptions
from treeagent.contrib.worlds.sandbox.box import LARGEST
from treeagent.contrib.worlds.sandbox.env import passes
from treeagent.envs import check_env
from treeagent.envs.calls import as_call
from treeagent.envs.check import check_tasks
from treeagent.types import ToolCall, UserError

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="code is sandboxed on Linux on x86-64 only"
)

FILES = {
    "pack/__init__.py": "from pack.inner import double\n",
    "pack/inner.py": "def double(x):\n    return x + x\n",
    "main.py": "import pack\nprint(pack.double(4))\nwith open('out.txt', 'w') as f:\n    f.write('done')\n",
    "test_pack.py": "from pack import double\n\ndef test_double():\n    assert double(2) == 5\n",
}


@pytest.fixture
def box() -> PythonBox:
    made = PythonBox(seconds=5.0)
    made.start(FILES)
    return made


def write(path: str, text: str) -> ToolCall:
    return ToolCall("write", {"path": path, "text": text})


def test_a_box_runs_files_and_returns_to_earlier_states(box: PythonBox) -> None:
    before = box.snapshot()
    assert box.run("python main.py") == (ran := box.run("python main.py"))
    assert (ran.output, ran.code) == ("8\n", 0)
    assert box.run("cat out.txt").output == "done"
    assert box.run("ls").output.split() == ["main.py", "out.txt", "pack/__init__.py", "pack/inner.py", "test_pack.py"]
    stored = pickle.dumps(box.snapshot())
    box.restore(before)
    assert box.run("cat out.txt").code == 1
    other = PythonBox()
    other.restore(pickle.loads(stored))
    assert other.run("cat out.txt").output == "done"


def test_tests_and_a_shell_say_what_they_found(box: PythonBox) -> None:
    ran = box.run("python -m pytest")
    assert ran.code == 1
    assert ran.output.splitlines() == [
        "FAIL test_double: test_pack.py, line 4: assert double(2) == 5: AssertionError",
        "0 passed, 1 failed",
    ]
    assert box.run("printf %s 'def double(x):\n    return 5' > pack/inner.py").code == 0
    assert box.run("python -m pytest test_pack.py").output == "1 passed, 0 failed\n"
    assert box.run("grep double pack/__init__.py").output == "pack/__init__.py:1: from pack.inner import double"
    assert box.run("rm main.py").code == 0
    for command in ("cat main.py", "cat ../main.py", "rm /etc/passwd", "curl x", "", "cat 'x", "python -c 1"):
        assert box.run(command).code in (1, 2)


HOSTILE = (
    "open('/etc/passwd').read()",
    "open('../secret').read()",
    "open('/tmp/{mark}', 'w').write('x')",
    "import os; os.open('/etc/passwd', 0)",
    "import os; os.open('/tmp/{mark}', os.O_CREAT | os.O_WRONLY)",
    "import io; io.FileIO('/etc/passwd').read()",
    "import os; os.listdir('/')",
    "import os; os.mkdir('/tmp/{mark}')",
    "import os; os.system('touch /tmp/{mark}')",
    "import os; os.fork()",
    "import os; os.execv('/bin/sh', ['sh', '-c', 'touch /tmp/{mark}'])",
    "import os; os.kill(os.getppid(), 9)",
    "import os; os.kill(1, 0)",
    "import subprocess; subprocess.run(['touch', '/tmp/{mark}'])",
    "import socket; socket.create_connection(('127.0.0.1', 1))",
    "import threading; threading.Thread(target=print).start()",
    "import ctypes; ctypes.CDLL(None).system(b'touch /tmp/{mark}')",
    "import pathlib; pathlib.Path('/tmp/{mark}').write_text('x')",
    "while True: pass",
    "x = 'x' * 10**12",
    "x = []\nwhile True: x.append(x * 2)",
    "while True: print('x' * 1000)",
    "open('big', 'w').write('x' * 10**6)",
    "def g(): g()\ng()",
    "import os; os._exit(0)",
    "raise SystemExit(3)",
    "import os\nfor n in range(20): os.close(n)",
    "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
    "import os\nwhile True: os.fork()",
    "import os; os.posix_spawn('/bin/touch', ['touch', '/tmp/{mark}'], {})",
    "import os; os.setsid()",
    "import os; os.setuid(0)",
    "import os; os.chroot('/')",
    "import os; os.symlink('/etc', '/tmp/{mark}')",
    "import os; os.rename('/etc/passwd', '/tmp/{mark}')",
    "import os; os.unlink('/tmp/{mark}')",
    "import os; os.stat('/etc/shadow')",
    "import os; os.readlink('/proc/self/exe')",
    "import os; os.pipe()",
    "import os; os.dup(1)",
    "import os; os.environ['X'] = '1'; os.putenv('X', '2'); os.getlogin()",
    "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
    "import socket; socket.socketpair()",
    "import multiprocessing; multiprocessing.Process(target=print).start()",
    "import mmap; mmap.mmap(-1, 10**12)",
    "import resource; resource.setrlimit(resource.RLIMIT_CPU, (99, 99))",
    "import shutil; shutil.rmtree('/tmp')",
    "import tempfile; tempfile.NamedTemporaryFile()",
    "import sqlite3; sqlite3.connect('/tmp/{mark}')",
    "import builtins, io; builtins.open = io.open\nopen('/tmp/{mark}', 'w')",
    "for n in range(10**6): open(str(n), 'w').write('x')",
)


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_hostile_command_leaves_no_trace(number: int) -> None:
    mark = f"treeagent-{os.getpid()}-{number}"
    box = PythonBox(seconds=5.0)
    box.start({"bad.py": HOSTILE[number].replace("{mark}", mark), "kept.py": "x = 1"})
    ran = box.run("python bad.py")
    assert not Path("/tmp", mark).exists()
    assert not any(path.startswith(("/", "..")) for path in box.files)
    assert "root:" not in ran.output
    assert box.run("cat kept.py").output == "x = 1"
    assert sum(map(len, box.files.values())) <= LARGEST


def test_the_environment_keeps_the_contract() -> None:
    env, other = SandboxEnv(), SandboxEnv()
    report = check_env(env, env.tasks("train", 1)[0], other=other, branches=6, depth=3)
    assert report.passed, report.violations
    assert report.equal_branches == report.branches > 2
    assert check_tasks(env) == []


def test_each_fault_is_noticed_and_its_solution_passes() -> None:
    env, box = SandboxEnv(), PythonBox()
    for task in env.tasks("test", 8):
        key = env.key_of(task)
        assert not passes(key.files, key.checks, box)
        assert passes({**key.files, **key.solution}, key.checks, box)
        env.reset(options={"task": task})
        player = env.demonstrator(0.0)
        while env.verdict() is None:
            env.step(as_call(player.act(random.Random(0))[1], env.tools()))
        assert env.verify() == 1.0


@pytest.mark.parametrize(
    "cheat",
    [
        "import os; os._exit(0)",
        "raise SystemExit(0)",
        "f = lambda xs: None",
        "class Yes:\n    def __eq__(self, other): return True\nf = lambda xs: Yes()",
        "import json\njson.dumps = lambda *a, **k: '[[\"value\", 1]]'\nf = lambda xs: 1",
        "import sys, os\nfor n in range(3, 30):\n    try: os.write(n, b'[]')\n    except OSError: pass\nf = None",
    ],
)
def test_a_verdict_cannot_be_forged(cheat: str) -> None:
    env = SandboxEnv()
    env.reset(options={"task": env.tasks("train", 1)[0]})
    env.step(write("solution.py", cheat))
    env.step(write("conftest.py", "raise SystemExit(0)"))
    env.step(write("test_solution.py", "def test_nothing(): pass"))
    assert env.step(ToolCall("submit", {}))[1:3] == (0.0, True)


class FolderBox:
    """A box with a real shell in a folder, for this test only: it holds nobody back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}

    def start(self, files: Mapping[str, str]) -> None:
        for path in self.folder.rglob("*"):
            if path.is_file():
                path.unlink()
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)

    def run(self, command: str) -> Ran:
        ran = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        return Ran(ran.stdout, ran.returncode)

    def snapshot(self) -> object:
        return {
            str(each.relative_to(self.folder)): each.read_text() for each in self.folder.rglob("*") if each.is_file()
        }

    def restore(self, snapshot: object) -> None:
        assert isinstance(snapshot, dict)
        self.start(snapshot)

    def close(self) -> None:
        pass


def test_another_box_needs_only_the_five_verbs(tmp_path: Path) -> None:
    env = SandboxEnv(make_box=lambda: FolderBox(tmp_path))
    task = env.tasks("train", 1)[0]
    env.reset(options={"task": task})
    start, player, said = env.snapshot(), env.demonstrator(0.0), list[str]()
    while env.verdict() is None:
        said.append(env.step(as_call(player.act(random.Random(0))[1], env.tools()))[0])
    assert env.verify() == 1.0
    assert said[0] == "written"
    assert "2 passed" in said[1]
    env.restore(start)
    assert env.files() == env.key_of(task).files
    assert env.step("shell[wc -l < solution.py]")[0] == "1"
    assert env.step("submit[]")[1] == 0.0


def test_edits_and_refusals() -> None:
    env = SandboxEnv()
    env.reset(options={"task": env.tasks("train", 1)[0]})
    edit = {"path": "solution.py", "old": "def f", "new": "def  f"}
    assert env.step(ToolCall("edit", edit))[0] == "written"
    assert env.step(ToolCall("edit", edit))[4]["tool_error"] == "old occurs 0 times in solution.py, not once"
    assert env.step(write("../x", "1"))[4]["tool_error"]
    assert env.step(write("x", "1" * LARGEST))[4]["tool_error"]
    assert env.files().keys() == {"solution.py", "test_solution.py"}


def test_own_tasks_are_proven_first(tmp_path: Path) -> None:
    row = {
        "id": "one",
        "prompt": "Repair double.",
        "files": {"a.py": "def double(x):\n    return x\n"},
        "checks": [["a", "double", [2], 4]],
        "solution": {"a.py": "def double(x):\n    return 2 * x\n"},
    }
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(row))
    env = SandboxEnv(SandboxOptions(tasks=path))
    tasks = [task for split in ("train", "validation", "test") for task in env._own or () if task.split == split]
    assert [task.id for task in tasks] == ["one"]
    path.write_text(json.dumps({**row, "solution": {}}))
    with pytest.raises(UserError, match="line 1: the checks must fail before"):
        SandboxEnv(SandboxOptions(tasks=path))

"""Sandboxes that branch: the five verbs, repair tasks, checks that cannot be forged, hostile commands."""

import json
import os
import pickle
import random
import shutil
import sys
import threading
import time
from pathlib import Path

import pytest
from forkd_server import Forkd

from treeagent.contrib.worlds.sandbox import (
    ContainerBox,
    HostedBox,
    PythonBox,
    Ran,
    SandboxEnv,
    SandboxOptions,
    ShellBox,
)
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


SHELL_HOSTILE = (
    *("cat /etc/passwd", "ls /root /home /work", "cat /proc/1/environ", "touch /usr/bin/{mark}", "touch /tmp/{mark}"),
    *("touch /{mark}", "rm -rf /usr/bin/env", "rm -rf /", "chmod -R 777 /usr", "mount -t tmpfs x /usr", "umount /usr"),
    *(
        "kill -9 -1",
        "kill -9 1",
        "kill -9 $PPID",
        "killall -9 python3",
        "chroot /usr",
        "mknod d b 8 0",
        "su",
        "sudo ls",
    ),
    *("sleep 60", "sleep 60 &", "nohup sleep 60 >/dev/null 2>&1 &", "setsid sleep 60 &", "(sleep 60 &) &", "yes"),
    *("exec 1>&-; sleep 60", "trap '' TERM INT; sleep 60", "kill -STOP $$", "while true; do true; done"),
    *("f() { f | f & }; f", "while true; do sleep 60 & done", "dd if=/dev/zero of=/tmp/x bs=1M count=4000"),
    *("dd if=/dev/zero of=x bs=1M count=4000", "head -c 300000 /dev/zero > x", "ln -s /etc/passwd kept.py", "mkfifo p"),
    *(
        "ln -s / root",
        "mkdir -p a/b; cd a/b; rm -rf ../../a",
        "python -c 'x = b\"x\" * 10**12'",
        "rm -rf /box",
        "cd /; rm -f box/*",
    ),
    *("python -c 'import socket; socket.create_connection((\"127.0.0.1\", 22), 2)'", "cat < /dev/tcp/1.1.1.1/80"),
    *(
        "python -c 'import os\nwhile True: os.fork()'",
        "unshare -Ur touch /usr/{mark}",
        "cat /dev/mem",
        "echo x > /proc/1/mem",
    ),
    *('for n in /proc/*/fd/1; do echo \'[0, "", {"../{mark}": "x"}]\' > $n; done', "printf '\\377\\376' > bad"),
    *("python -c 'import sys; sys.stdout.write(\"x\" * 10**7)'", "touch -- '-rf' 'a b' '$(x)'", "exit 77"),
)


@pytest.fixture
def shell() -> ShellBox:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not there")
    return ShellBox(seconds=1.0)


def test_a_shell_runs_in_a_box_and_returns_to_earlier_states(shell: ShellBox) -> None:
    shell.start(FILES)
    before = shell.snapshot()
    assert shell.run("python main.py && wc -l < main.py").output.split() == ["8", "4"]
    assert shell.files["out.txt"] == "done"
    assert shell.run("id -u && ls /home").output.startswith(f"{os.getuid() or 65534}\n")
    stored = pickle.dumps(shell.snapshot())
    shell.restore(before)
    assert shell.run("cat out.txt").code == 1
    shell.restore(pickle.loads(stored))
    assert shell.run("cat out.txt") == Ran("done", 0)
    assert len(SHELL_HOSTILE) >= 50


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(SHELL_HOSTILE)))
def test_a_hostile_shell_command_leaves_no_trace(number: int, shell: ShellBox) -> None:
    mark = f"treeagent-{os.getpid()}-{number}"
    shell.start({"kept.py": "x = 1"})
    before, begun = _processes(), time.monotonic()
    ran = shell.run(SHELL_HOSTILE[number].replace("{mark}", mark))
    assert time.monotonic() - begun < 60
    assert _processes() <= before
    assert not any(Path(folder, mark).exists() for folder in ("/", "/tmp", "/usr", "/usr/bin", ".."))
    assert "root:x:" not in ran.output
    assert not any(path.startswith(("/", "..")) for path in shell.files)
    assert sum(map(len, shell.files.values())) <= LARGEST
    shell.start({"kept.py": "x = 1"})
    assert shell.run("cat kept.py") == Ran("x = 1", 0)


def _processes() -> set[str]:
    """The sandboxes that run under this process."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return {each for each in children if b"bwrap" in Path(f"/proc/{each}/cmdline").read_bytes()}


@pytest.mark.slow
def test_the_environment_plays_in_a_shell(shell: ShellBox) -> None:
    env, other = (SandboxEnv(SandboxOptions(box="shell")) for _ in range(2))
    task = env.tasks("train", 1)[0]
    report = check_env(env, task, other=other, branches=2, depth=2)
    assert report.passed, report.violations
    env.reset(options={"task": task})
    start, player, said = env.snapshot(), env.demonstrator(0.0), list[str]()
    while env.verdict() is None:
        said.append(env.step(as_call(player.act(random.Random(0))[1], env.tools()))[0])
    assert env.verify() == 1.0
    assert said[0] == "written"
    env.restore(start)
    assert env.files() == env.key_of(task).files
    assert env.step("shell[wc -l < solution.py]")[0] == "1"
    assert env.step("submit[]")[1] == 0.0


def test_a_hosted_box_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not there, in which the stand-in for the service runs commands")
    with Forkd(tmp_path) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("SERVICE_KEY", "sesame")
        env, other = (SandboxEnv(SandboxOptions(box="hosted", url=url, key="SERVICE_KEY")) for _ in range(2))
        report = check_env(env, env.tasks("train", 1)[0], other=other, branches=2, depth=2)
        assert report.passed, report.violations
        assert report.equal_branches == report.branches == 2
        box, long = HostedBox(url, "SERVICE_KEY", "python", seconds=1), "'\n" * 40_000
        box.start({**FILES, "a/long.txt": long})
        before = box.snapshot()
        assert box.run("cat a/long.txt") == Ran(long, 0)
        assert box.run("rm main.py; exit 3").code == 3
        assert box.run("sleep 5").code == 1
        box.restore(before)
        assert box.run("wc -l < main.py") == Ran("4\n", 0)
        for each in (box, env.box, other.box):
            each.close()
        assert (server.names("sandboxes"), server.names("snapshots")) == ([], ["python"])
        with pytest.raises(UserError, match="image 'gone' is none of forkd's snapshots: python"):
            HostedBox(url, "SERVICE_KEY", "gone")
        with pytest.raises(UserError, match=r"with the key of NO_KEY .*401"):
            HostedBox(url, "NO_KEY", "python")
        server.shutdown()


@pytest.mark.slow
def test_a_container_runs_commands_and_returns_to_earlier_states(tmp_path: Path) -> None:
    if shutil.which("podman") is None or os.getuid() != 0:
        pytest.skip("podman is not there, or this user may not run containers of a folder")
    for name in ("usr", "proc", "dev", "sys", "etc", "run", "var", "tmp"):  # an image of the system's own programs
        (tmp_path / name).mkdir()
    tmp_path.chmod(0o755)
    (tmp_path / "tmp").chmod(0o1777)
    for name in ("bin", "lib", "lib64"):
        (tmp_path / name).symlink_to(f"usr/{name}")
    engine = ("podman", *(("--runtime", "runc") if shutil.which("runc") else ()), "run", "--volume=/usr:/usr:ro")
    limits = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096")
    box = ContainerBox((*engine, *limits, "--rootfs", str(tmp_path)), seconds=2.0)
    box.start(FILES)
    before = box.snapshot()
    assert box.run("python3 main.py && wc -l < main.py && id -u").output.split() == ["8", "4", "65534"]
    assert box.files["out.txt"] == "done"
    box.restore(before)
    assert box.run("ls out.txt").code == 2
    for hostile in (
        "touch /usr/x /x",
        "sleep 60",
        "(sleep 60 &) &",
        "kill -9 -1",
        "rm -rf /",
        "cat < /dev/tcp/1.1.1.1/80",
    ):
        box.run(hostile)
    assert box.run("cat test_pack.py").output == FILES["test_pack.py"]
    with pytest.raises(UserError, match="name an engine that is installed"):
        ContainerBox(("no-such-engine", "run", "image"))


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

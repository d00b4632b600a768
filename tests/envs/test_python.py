"""The Python code tool: what its verifier accepts, and what a sandbox lets nobody do."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from treeagent.envs import make_env
from treeagent.envs.python import PythonEnv, PythonOptions
from treeagent.envs.python.sandbox import Sandbox
from treeagent.envs.python.tasks import draw_task
from treeagent.types import ToolCall, UserError

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="code is sandboxed on Linux on x86-64 only"
)


@pytest.fixture
def env() -> PythonEnv:
    env = PythonEnv(PythonOptions(difficulty=2))
    env.reset(options={"task": env.tasks("train", 1)[0]})
    return env


def said(code: str, **limits: float) -> str:
    """What the code printed, and why it was ended."""
    run = Sandbox(**limits).run(code)  # type: ignore[arg-type]
    return f"{run.output.strip()} {run.error}".strip()


def test_code_computes_and_prints() -> None:
    assert said("import math, json\nprint(json.dumps([1 + 1, math.floor(2.5)]))") == "[2, 2]"
    assert said("x = 1\n\nx / 0") == "line 3: ZeroDivisionError: division by zero"
    assert said("def f(:") == "SyntaxError: invalid syntax"
    assert said("") == ""
    assert said("import csv, textwrap, statistics; print(statistics.mean([1, 3]))") == "2"
    assert Sandbox().run("def f(a, b=2): return [a, b]", [(1,), ("x", None)]).returned == [[1, 2], ["x", None]]
    assert Sandbox().run("import random; f = random.random", [()]) == Sandbox().run(
        "import random; f = random.random", [()]
    )
    assert said("print(sorted({'a', 'b', 'c', 'd'}, key=hash))") == said(
        "print(sorted({'a', 'b', 'c', 'd'}, key=hash))"
    )


def test_no_file_outside_pythons_library_is_read_and_none_is_written(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    for place in (
        str(secret),
        "/etc/passwd",
        "/proc/self/environ",
        f"/proc/{os.getpid()}/environ",
        "/dev/zero",
        __file__,
    ):
        assert "Permission denied" in said(f"print(open({place!r}).read())")
    for written in (str(tmp_path / "new"), "/tmp/new", os.__file__, "/dev/shm/new"):
        assert "Permission denied" in said(f"open({written!r}, 'a')")
    for call in (
        f"os.listdir({str(tmp_path)!r})",
        f"os.remove({str(secret)!r})",
        f"os.rename({str(secret)!r}, '/tmp/stolen')",
        f"os.chmod({str(secret)!r}, 0)",
        f"os.utime({str(secret)!r}, (0, 0))",
        f"os.truncate({str(secret)!r}, 0)",
        f"os.link({str(secret)!r}, '/tmp/stolen')",
        f"os.symlink({str(secret)!r}, '/tmp/stolen')",
        "os.mkdir('/tmp/new')",
        "os.memfd_create('x')",
    ):
        assert "PermissionError" in said(f"import os; {call}"), call
    assert secret.read_text() == "key"
    assert sorted(tmp_path.iterdir()) == [secret]


def test_there_is_no_network_no_other_process_and_no_environment() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "PermissionError" in said(f"import socket; socket.create_connection(('127.0.0.1', {port}))")
    for call in (
        "os.fork()",
        "os.system('true') and 1/0",
        "os.execv('/bin/true', ['true'])",
        "os.posix_spawn('/bin/true', ['true'], {})",
        f"os.kill({os.getpid()}, 9)",
        "os.setuid(0)",
        "os.unshare(0)" if hasattr(os, "unshare") else "os.fork()",
    ):
        assert "Error" in said(f"import os; {call}"), call
    assert "PermissionError" in said("import subprocess; subprocess.run(['true'])")
    assert said("import os; print(set(os.environ) - {'PYTHONHASHSEED', 'LC_CTYPE'})") == "set()"
    assert said("import socket; socket.socketpair()").endswith("Operation not permitted")
    assert "can't start new thread" in said("import threading; threading.Thread(target=print).start()")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ptrace", "16, {process}, 0, 0"),
        ("process_vm_readv", "{process}, 0, 0, 0, 0, 0"),
        ("kill", "{process}, 9"),
        ("unshare", "0x10000000"),
        ("mount", "0, 0, 0, 0, 0"),
        ("prctl", "4, 1, 0, 0, 0"),
        ("personality", "0xffffffff"),
        ("setns", "0, 0"),
        ("chroot", "b'/'"),
        ("fcntl", "1, 8, {process}"),
    ],
)
def test_a_system_call_by_hand_is_refused(name: str, arguments: str) -> None:
    call = f"libc.{name}({arguments.format(process=os.getpid())})"
    code = f"import ctypes; libc = ctypes.CDLL(None, use_errno=True); print({call}, ctypes.get_errno())"
    assert said(code) == "-1 1"


def test_the_wrong_architectures_calls_end_the_run() -> None:
    # int 0x80 with eax = 20 asks for getpid by the numbers of 32 bits.
    machine_code = "b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3'"
    code = (
        "import ctypes, mmap\n"
        "page = mmap.mmap(-1, 4096, prot=7)\n"
        f"page.write({machine_code})\n"
        "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()\n"
        "print('alive')"
    )
    assert said(code).startswith("it ended by")


@pytest.mark.timeout(900)
def test_what_has_no_end_is_ended() -> None:
    for code in (
        "import time; time.sleep(1000)",
        "import signal, time\nfor each in (1, 2, 15, 24): signal.signal(each, lambda *_: 0)\ntime.sleep(1000)",
        "import os, time; os.close(1); os.close(2); time.sleep(1000)",
    ):
        assert said(code, seconds=2.0) == "it took too long"
    assert "seconds of processor time" in said("while True: pass", seconds=250.0)
    assert "seconds of processor time" in said(
        "import signal; signal.signal(signal.SIGXCPU, lambda *_: 0)\nwhile True: pass", seconds=250.0
    )


def test_a_fork_bomb_hungry_code_and_chatter_are_held() -> None:
    assert "PermissionError" in said("import os\nwhile True: os.fork()")
    assert said("x = 'a' * 10**9") == "line 1: MemoryError"
    assert "MemoryError" in said("x = []\nwhile True: x.append('a' * 10**6)")
    run = Sandbox().run("while True: print('x' * 1000)")
    assert run.error == "it wrote too much"
    assert len(run.output) <= 2**16
    # The file to which results go is none to fill the parent's memory by.
    assert Sandbox().run("import os\nwhile True: os.write(int(__import__('sys').argv[1]), b'1' * 9999)").error


def test_no_process_is_left_behind() -> None:
    for code in ("import time; time.sleep(1000)", "while True: print(1)", "import os; os.abort()", "print(1)"):
        Sandbox(seconds=1.0).run(code)
    found = subprocess.run(["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True).stdout
    assert "child.py" not in found


def test_where_a_right_cannot_be_given_up_no_code_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import treeagent.envs.python.sandbox as sandbox

    # A kernel without Landlock answers its first call with "no such system call", as this number is answered.
    text = sandbox._CHILD.read_text()
    assert "= 444, 445, 446" in text
    old_kernel = tmp_path / "child.py"
    old_kernel.write_text(text.replace("= 444, 445, 446", "= 9999, 445, 446"))
    monkeypatch.setattr(sandbox, "_CHILD", old_kernel)
    with pytest.raises(
        UserError, match=r"cannot be run safely on this machine \(Landlock is refused \(Function not"
    ) as caught:
        Sandbox().run("print('ran')")
    assert "ran" not in str(caught.value)
    with pytest.raises(UserError, match="cannot be run safely"):
        make_env("python")


def test_the_solution_passes_and_cheap_code_does_not(env: PythonEnv) -> None:
    place, exercise = env.snapshot(), env.key
    (task,) = env.tasks("train", 1)
    table = dict((repr(argument), value) for argument, value in exercise.examples)
    always_equal = (
        "class Any:\n  def __eq__(self, other): return True\n  def __repr__(self): return '0'\ndef f(xs): return Any()"
    )
    for code in (
        "",
        task.prompt,
        "f = None",
        "def f(xs): return None",
        "def f(xs): return xs",
        "def f(): return 0",
        "def f(xs): raise SystemExit(0)",
        "def f(xs): import os; os._exit(0)",
        f"def f(xs): return {table}.get(repr(xs))",
        f"def f(xs): return {exercise.tests[0][1]!r}",
        always_equal,
        "import os, sys\nos.write(int(sys.argv[1]), b'true')\nos._exit(0)",
        "import os, sys\nos.write(int(sys.argv[1]), b'[]')\nos._exit(0)",
        "import os, sys\nos.write(int(sys.argv[1]), b'[' * 9999)\nos._exit(0)",
        "import sys\nprint([each for each in sys._getframe(1).f_locals['request']['calls']])\ndef f(xs): return 1",
    ):
        env.restore(place)
        assert env.step(ToolCall("submit", {"code": code}))[:3] == ("handed in", 0.0, True), code
        assert env.verify() == 0.0
    env.restore(place)
    assert env.verify() == 0.0
    assert env.step(f"submit[{exercise.gold}]") == ("handed in", 1.0, True, False, {})
    assert env.verify() == 1.0


def test_the_expected_values_never_enter_the_sandbox(env: PythonEnv) -> None:
    wanted = [value for _, value in env.key.tests]
    code = "import sys\nprint(sys._getframe(1).f_locals['request'])"
    run = Sandbox().run(code, [(argument,) for argument, _ in env.key.tests])
    assert "'calls': [[[" in run.output
    assert repr(wanted) not in run.output


def test_testing_compares_with_the_examples_and_running_prints(env: PythonEnv) -> None:
    exercise = env.key
    assert env.step(f"test[{exercise.gold}]")[0] == "all examples pass"
    argument, value = exercise.examples[0]
    assert env.step("test[def f(xs): return 'no']")[0].startswith(f"f({argument}) gives 'no', not {value}; ")
    assert env.step("test[def f(xs): return 1 / 0]")[0] == "line 1: ZeroDivisionError: division by zero"
    assert env.step('run {"code": "x = 2\\nprint(x)"}')[0] == "2"
    assert env.step("run[x = 1]")[0] == "no output"
    assert env.step("run[print('y' * 1000)]")[0] == "y" * 300 + " and 700 more characters"
    for call in ("dance[]", "run", ToolCall("run", {"code": 3}), ToolCall("run", {})):
        assert env.step(call)[4]["tool_error"]
    assert env.verify() == 0.0


def test_no_exercise_is_in_two_splits(env: PythonEnv) -> None:
    golds = [
        draw_task(split, index, 1).data["gold"] for split in ("train", "validation", "test") for index in range(128)
    ]
    assert len(set(golds)) == len(golds) == 384
    with pytest.raises(UserError, match="of difficulty 1 there are"):
        draw_task("train", 128, 1)
    for difficulty in (2, 3):
        for index in range(300):
            results = {repr(value) for _, value in env.key_of(draw_task("test", index, difficulty)).tests}
            assert len(results) > 2, "no constant, and no pair of conditions that leave nothing"
    three = draw_task("train", 5, 3)
    assert " and " in three.prompt and three.prompt.startswith("Write f(xs): of the numbers in xs that are ")

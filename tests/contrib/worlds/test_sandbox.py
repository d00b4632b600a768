"""Attacks on the sandbox of the Python tool: code that tries to reach files, processes, the network or the answers."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from treeagent.contrib.worlds.sandbox import PythonBox
from treeagent.contrib.worlds.sandbox.child import _CALLS, _CLOCK_CALLS
from treeagent.contrib.worlds.sandbox.process import Sandbox
from treeagent.envs import make_env
from treeagent.types import UserError

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="code is sandboxed on Linux on x86-64 only"
)


def said(code: str, **limits: float) -> str:
    """The output of the code, and why it was ended."""
    run = Sandbox(**limits).run(code)  # type: ignore[arg-type]
    return f"{run.output.strip()} {run.error}".strip()


def answers(lines: list[str], header: str = "") -> list[str]:
    """For each line of code, the name of the exception that it raises, or ``no error``. All lines run in one
    process."""
    code = (
        f"{header}\nimport json\nanswers = []\n"
        f"for line in json.loads({json.dumps(json.dumps(lines))}):\n"
        "    try:\n        exec(line)\n        answers.append('no error')\n"
        "    except BaseException as error:\n        answers.append(type(error).__name__)\n"
        "print(json.dumps(answers))"
    )
    found: list[str] = json.loads(Sandbox().run(code).output)
    assert len(found) == len(lines)
    return found


def test_code_computes_and_prints() -> None:
    assert said("import math, json\nprint(json.dumps([1 + 1, math.floor(2.5)]))") == "[2, 2]"
    assert said("x = 1\n\nx / 0") == "line 3: ZeroDivisionError: division by zero"
    assert said("from datetime import datetime; print(datetime.strptime('2', '%d').day)") == "2"
    assert said("from dataclasses import dataclass\n@dataclass\nclass A: x: int\nprint(A(1))") == "A(x=1)"
    assert Sandbox().run("def f(a, b=2): return [a, b]", [(1,), ("x", None)]).returned == [[1, 2], ["x", None]]
    code = "import random\nf = lambda: [random.random(), sorted({'a', 'b', 'c'}, key=hash)]"
    assert Sandbox().run(code, [()]) == Sandbox().run(code, [()])


READ = (
    "open({path!r})",
    "open({path!r}, 'rb')",
    "os.open({path!r}, os.O_PATH)",
    "os.stat({path!r})",
    "os.listdir({path!r})",
    "os.readlink({path!r})",
    "os.chdir({path!r})",
    "os.chroot({path!r})",
)


@pytest.mark.parametrize("path", ["{file}", "{folder}", "/proc/self/environ", "/dev/zero", __file__, "/no/such/file"])
def test_code_can_neither_open_a_file_nor_tell_whether_it_exists(path: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("key")
    path = path.format(file=file, folder=tmp_path)
    assert set(answers([each.format(path=path) for each in READ], "import os")) == {"PermissionError"}
    assert answers([f"assert not os.access({path!r}, 0)", f"assert not os.path.exists({path!r})"], "import os") == [
        "no error",
        "no error",
    ]


@pytest.mark.parametrize("header", ["", "import sys; sys.path += ['/', {packages!r}, {project!r}]"])
def test_no_package_and_none_of_our_own_modules_can_be_imported(header: str) -> None:
    import numpy

    import treeagent

    packages = str(Path(numpy.__file__).parents[1])
    project = str(Path(treeagent.__file__).parents[1])
    lines = [
        f"import {name}" for name in ("treeagent", "treeagent.contrib.worlds.sandbox.env", "numpy", "pip", "child")
    ]
    found = answers(lines, header.format(packages=packages, project=project))
    assert set(found) <= {"ModuleNotFoundError", "PermissionError", "ImportError"}


def test_there_is_no_network_no_other_process_and_no_environment() -> None:
    tries = [
        "os.fork()",
        "assert os.system('true') == 0",
        "os.execv('/bin/true', ['true'])",
        f"os.kill({os.getpid()}, 9)",
        f"os.pidfd_open({os.getpid()})",
        "os.setuid(0)",
        "import socket",
        "_thread.start_new_thread(print, ())",
        f"time.clock_gettime(({~os.getpid()} << 3) | 2)",  # the CPU time of another process
        "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        f"resource.prlimit({os.getpid()}, resource.RLIMIT_AS)",
    ]
    found = answers(tries, "import os, time, resource, _thread")
    assert "no error" not in found, dict(zip(tries, found, strict=True))
    assert said("import os; print(set(os.environ) - {'PYTHONHASHSEED', 'LC_CTYPE'})") == "set()"


@pytest.mark.parametrize("x32", [0, 0x40000000])
def test_every_system_call_that_is_not_listed_is_refused(x32: int) -> None:
    # 335 and 336 are return points of the kernel's own probes. The kernel answers them itself, with a signal or an
    # error.
    allowed = () if x32 else (*_CALLS, *_CLOCK_CALLS, 335, 336)
    code = (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nwrong = []\n"
        f"for number in set(range(600)) - set({allowed}):\n"
        "    ctypes.set_errno(0)\n"
        f"    answer = libc.syscall({x32} + number, -1, 0, 0, 0, 0, 0)\n"
        "    if (answer, ctypes.get_errno()) != (-1, 1): wrong.append(number)\n"
        "print(wrong)"
    )
    assert said(code) == "[]"


def test_the_wrong_architectures_calls_end_the_run() -> None:
    # int 0x80 with eax = 20 calls getpid by its 32-bit number.
    machine_code = "b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3'"
    code = (
        "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\n"
        "page = libc.mmap(None, 4096, 7, 0x22, -1, 0)\n"
        f"ctypes.memmove(page, {machine_code}, 8)\n"
        "ctypes.CFUNCTYPE(ctypes.c_int)(page)()\n"
        "print('alive')"
    )
    assert said(code).startswith("it ended by")


def test_what_waits_without_end_is_ended() -> None:
    for code in (
        "import time; time.sleep(1000)",
        "import signal, time\nfor each in (1, 2, 15, 24): signal.signal(each, lambda *_: 0)\ntime.sleep(1000)",
        "import os, time; os.close(1); os.close(2); time.sleep(1000)",
    ):
        assert said(code, seconds=1.0) == "it took too long"


def test_a_fork_bomb_hungry_code_and_chatter_are_held() -> None:
    assert "PermissionError" in said("import os\nwhile True: os.fork()")
    assert said("x = 'a' * 10**9") == "line 1: MemoryError"
    assert "MemoryError" in said("x = []\nwhile True: x.append('a' * 10**6)")
    run = Sandbox().run("while True: print('x' * 1000)")
    assert run.error == "it wrote too much"
    assert len(run.output) <= 2**16
    # The file for results must not be a way to fill the parent's memory.
    assert Sandbox().run("import os\nwhile True: os.write(int(__import__('sys').argv[1]), b'1' * 9999)").error


def test_a_run_ends_with_the_process_that_waits_for_it(tmp_path: Path) -> None:
    program = (
        "from treeagent.contrib.worlds.sandbox.process import Sandbox; Sandbox(60.0).run('import time; time.sleep(60)')"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    deadline = time.monotonic() + 20
    while not (child := children.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    while Path(f"/proc/{child}/exe").is_symlink() and Path(f"/proc/{child}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_where_a_right_cannot_be_given_up_no_code_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import treeagent.contrib.worlds.sandbox.process as sandbox

    # A kernel without seccomp filters answers with "invalid argument", as it does for this unknown number.
    text = sandbox._CHILD.read_text()
    assert "= 1, 38, 22, 2\n" in text
    old_kernel = tmp_path / "child.py"
    old_kernel.write_text(text.replace("= 1, 38, 22, 2\n", "= 1, 38, 9999, 2\n"))
    monkeypatch.setattr(sandbox, "_CHILD", old_kernel)
    with pytest.raises(UserError, match="seccomp is refused") as caught:
        Sandbox().run("print('ran')")
    assert "ran" not in str(caught.value)
    with pytest.raises(UserError, match="cannot be run safely"):
        make_env("sandbox")


@pytest.mark.parametrize("code", [0, 97])
@pytest.mark.parametrize("written", ["", "seccomp is refused", "locked\n"])
def test_code_cannot_claim_that_the_sandbox_is_missing(code: int, written: str) -> None:
    run = Sandbox().run(f"import os, sys; os.write(int(sys.argv[1]), {written.encode()!r}); os._exit({code})", [()])
    assert run.returned is None
    assert run.error == (f"it ended by exit code {code}" if code else "")


FORGED = ("[]", "[1]", "null", "true", "{}", "[[]]", "[1, 2, 3]", "NaN", "[" * 9999, "[" * 600 + "]" * 600, "", "\xff")


@pytest.mark.parametrize("forged", FORGED)
def test_forged_results_are_no_value(forged: str) -> None:
    box = PythonBox()
    box.start({"a.py": f"import os, sys\nos.write(int(sys.argv[1]), {forged.encode('latin-1')!r})\nos._exit(0)"})
    [found] = box.values([("a", "f", [1])])
    assert found != ["value", 1]
    assert box.run("python -m pytest a.py").code != 0

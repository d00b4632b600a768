"""Run untrusted Python code in a process that can only compute."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treeagent.contrib.worlds.sandbox.child import CPU_SECONDS, LOCKED
from treeagent.types import UserError

_CHILD = Path(__file__).with_name("child.py")
_OUTPUT_BYTES = 2**16
"""Most bytes of a run's output, and most bytes of its results. A run that writes more is killed."""
_TOO_LONG = "it took too long"


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a run."""

    output: str
    """What the code printed, and the last line of the traceback if it raised an exception."""
    error: str
    """Why the run was stopped; empty if it finished."""
    returned: list[Any] | None = None
    """The return value of ``f`` for each call, converted to JSON and back; None if a call failed."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Runs code under limits. A run has no network, no files, no other processes and no environment variables. Its CPU
    time is limited, too (``CPU_SECONDS``). It can import the modules that ``child.py`` loads."""

    seconds: float = 10.0
    """Most wall-clock time of a run, in seconds."""
    megabytes: int = 256
    """Most memory of a run, in MiB."""
    modules: tuple[str, ...] = ()
    """More modules of the standard library that code can import."""

    def run(self, code: str, calls: Sequence[Sequence[object]] = ()) -> Run:
        """Run ``code``, then call its function ``f`` once for each element of ``calls``, which holds the arguments.
        Each run starts in a new process."""
        request = {"code": code, "calls": calls, "megabytes": self.megabytes, "modules": self.modules}
        results, theirs = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-sSP", "-X", "utf8", str(_CHILD), str(theirs), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs,),
                cwd="/",
                env={"PYTHONHASHSEED": "0"},
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        assert process.stdin is not None and process.stdout is not None
        deadline = time.monotonic() + self.seconds
        with process, os.fdopen(results, "rb"):
            try:
                with contextlib.suppress(BrokenPipeError):  # it has ended already; the exit code is checked below
                    process.stdin.write(json.dumps(request).encode())
                    process.stdin.close()
                (output, written), error = read_pipes([process.stdout.fileno(), results], deadline)
                if not error:
                    process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                error = _TOO_LONG
            finally:
                process.kill()
        if not error and not written.startswith(LOCKED):
            why = written.decode(errors="replace") or output.decode(errors="replace")
            raise UserError(
                f"code cannot be run safely on this machine ({why.strip()}): use Linux on x86-64 with seccomp"
            )
        error = error or _exit_reason(process.returncode)
        returned = _returned(written.removeprefix(LOCKED), len(calls)) if calls and not error else None
        return Run(output.decode(errors="replace"), error, returned)


def read_pipes(files: Sequence[int], deadline: float, most: int = _OUTPUT_BYTES) -> tuple[list[bytes], str]:
    """Read the pipes until they are closed. Returns the bytes of each, and why reading was stopped early, or an empty
    text."""
    read = dict.fromkeys(files, b"")
    with selectors.DefaultSelector() as waited:
        for file in files:
            waited.register(file, selectors.EVENT_READ)
        while waited.get_map():
            ready = waited.select(max(deadline - time.monotonic(), 0.0))
            if not ready:
                return list(read.values()), _TOO_LONG
            for key, _ in ready:
                piece = os.read(key.fd, _OUTPUT_BYTES)
                read[key.fd] += piece
                if not piece:
                    waited.unregister(key.fd)
                elif len(read[key.fd]) > most:
                    return [each[:most] for each in read.values()], "it wrote too much"
    return list(read.values()), ""


def _exit_reason(code: int) -> str:
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"it took more than {CPU_SECONDS} seconds of processor time"
    return "" if code == 0 else f"it ended by {signal.strsignal(-code) if code < 0 else f'exit code {code}'}"


def _returned(written: bytes, calls: int) -> list[Any] | None:
    try:
        returned = json.loads(written)
    except (ValueError, RecursionError):  # nothing was written, or the code itself wrote to this pipe
        return None
    return returned if isinstance(returned, list) and len(returned) == calls else None

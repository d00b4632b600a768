"""Run untrusted Python code in a process that can do nothing but compute."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treeagent.envs.python.child import CPU_SECONDS, UNAVAILABLE
from treeagent.types import UserError

_CHILD = Path(__file__).with_name("child.py")
_OUTPUT_BYTES = 2**16
"""Most bytes of output, and of results, after which a run is ended."""
_TOO_LONG = "it took too long"


@dataclass(frozen=True, slots=True)
class Run:
    """What code did."""

    output: str
    """What it printed, and the last line of its traceback if it raised."""
    error: str
    """Why it was ended; empty where it came to its end."""
    returned: list[Any] | None = None
    """What ``f`` returned for each call, as JSON has it; none where one call failed."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Limits of a run. A run has no network, no process but its own, no environment variables, no file that it can
    write and none but Python's library that it can read; its processor time is limited, too (``CPU_SECONDS``).

    Raises:
        UserError: from ``run`` before any code is run, where this machine cannot do that.
    """

    seconds: float = 10.0
    """Wall time."""
    megabytes: int = 256

    def run(self, code: str, calls: Sequence[Sequence[object]] = ()) -> Run:
        """Run ``code``, then ``f`` of it with the arguments of each of ``calls``. Each run starts afresh."""
        request = {"code": code, "calls": calls, "megabytes": self.megabytes}
        results, theirs = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-sSP", "-X", "utf8", str(_CHILD), str(theirs)],
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
                with contextlib.suppress(BrokenPipeError):  # it ended before; its exit code tells
                    process.stdin.write(json.dumps(request).encode())
                    process.stdin.close()
                (output, written), error = _read([process.stdout.fileno(), results], deadline)
                if not error:
                    process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                error = _TOO_LONG
            finally:
                process.kill()
        if not error and process.returncode == UNAVAILABLE:
            raise UserError(
                f"code cannot be run safely on this machine ({output.decode(errors='replace').strip()}): "
                "use Linux 5.13 or newer on x86-64, with Landlock and seccomp"
            )
        error = error or _ending(process.returncode)
        return Run(output.decode(errors="replace"), error, None if error else _returned(written))


def _read(files: Sequence[int], deadline: float) -> tuple[list[bytes], str]:
    """All that is written to the pipes until they are closed, and why that was not waited for."""
    read = dict.fromkeys(files, b"")
    waited = list(files)
    while waited:
        ready = select.select(waited, [], [], max(deadline - time.monotonic(), 0.0))[0]
        if not ready:
            return list(read.values()), _TOO_LONG
        for file in ready:
            piece = os.read(file, _OUTPUT_BYTES)
            read[file] += piece
            if not piece:
                waited.remove(file)
            elif len(read[file]) > _OUTPUT_BYTES:
                return [each[:_OUTPUT_BYTES] for each in read.values()], "it wrote too much"
    return list(read.values()), ""


def _ending(code: int) -> str:
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"it took more than {CPU_SECONDS} seconds of processor time"
    return "" if code == 0 else f"it ended by {signal.strsignal(-code) if code < 0 else f'exit code {code}'}"


def _returned(written: bytes) -> list[Any] | None:
    try:
        returned = json.loads(written)
    except (ValueError, RecursionError):  # nothing was written, or code wrote here itself
        return None
    return returned if isinstance(returned, list) else None

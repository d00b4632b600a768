"""Program that runs in the sandbox: it drops all privileges that it does not need, then runs the given code.

It is started as a script in a new interpreter and does not import treeagent. The privileges are dropped permanently, by
a filter of system calls (seccomp) and by limits on CPU time and memory. No system call that takes a path is allowed, so
code can neither open a file nor see whether one exists. The modules that it can import are loaded before.
"""

import ctypes
import importlib
import json
import os
import random
import resource
import signal
import struct
import sys
import traceback
from typing import Any

CPU_SECONDS, LOCKED = 2, b"locked\n"
"""The limit of CPU time; and the line that is written before the results, once all privileges are dropped."""

_MODULES = (
    *("_strptime", "array", "base64", "bisect", "calendar", "cmath", "collections.abc", "contextlib", "copy", "csv"),
    *("dataclasses", "datetime", "decimal", "difflib", "encodings.ascii", "encodings.latin_1", "enum", "fractions"),
    *("functools", "graphlib", "hashlib", "heapq", "itertools", "math", "numbers", "operator", "pprint", "re"),
    *("statistics", "string", "textwrap", "time", "types", "typing", "unicodedata", "zlib"),
)
"""Modules that code can import in addition to those that this file imports."""
_DEATH_SIGNAL, _NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 1, 38, 22, 2
_X86_64 = 0xC000003E
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
"""Actions of the seccomp filter. A refused call fails with EPERM, which Python raises as a PermissionError."""
_CALLS = (
    *(0, 1, 3, 5, 8, 19, 20),  # read write close fstat lseek readv writev: files that are already open
    *(9, 10, 11, 12, 25, 28),  # mmap mprotect munmap brk mremap madvise: its own memory
    *(13, 14, 15, 131),  # rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack: its own handlers, no sending
    *(24, 35, 202, 219),  # sched_yield nanosleep futex restart_syscall: waiting
    *(39, 186, 102, 104, 107, 108),  # getpid gettid getuid getgid geteuid getegid
    *(96, 98, 100),  # gettimeofday getrusage times
    *(318, 334),  # getrandom rseq
    *(60, 231),  # exit exit_group
)
"""Allowed system calls, by their numbers on x86-64. None takes a path, none creates a file, a process or a thread, and
none refers to another process."""
_CLOCK_CALLS, _CLOCKS = (228, 229, 230), 16
"""clock_gettime, clock_getres and clock_nanosleep, which are allowed for the first 16 clocks only. The other clocks
belong to other processes and to devices."""


class Unavailable(Exception):
    """A privilege cannot be dropped on this machine."""


def lock(megabytes: int) -> None:
    """Drop all privileges except to compute and to write to files that are already open."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise Unavailable(f"it is {sys.platform} on {os.uname().machine}, not linux on x86_64")
    limits = {
        resource.RLIMIT_CPU: CPU_SECONDS,
        resource.RLIMIT_AS: megabytes * 2**20,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 32,
    }
    for limit, most in limits.items():
        # The signal at the soft limit can be ignored; the one at the hard limit, a second later, cannot.
        resource.setrlimit(limit, (most, most + (limit == resource.RLIMIT_CPU)))
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no_new_privs")
    program = _filter()
    code = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(code))
    _check(libc.prctl(_SET_SECCOMP, _FILTER, described, 0, 0), "seccomp")


def _check(answer: int, name: str) -> int:
    if answer < 0:
        raise Unavailable(f"{name} is refused ({os.strerror(ctypes.get_errno())})")
    return answer


def _filter() -> bytes:
    """Return the BPF program of the filter, which allows the listed calls on x86-64 and refuses all others."""
    load, jump_equal, jump_at_least, answer = 0x20, 0x15, 0x35, 0x06
    number, architecture, first_argument = 0, 4, 16  # offsets in the kernel's struct seccomp_data
    check_clock = [(load, 0, 0, first_argument), (jump_at_least, 1, 0, _CLOCKS)]
    # A jump is the number of instructions to skip. The jumps of the listed calls lead to the actions at the end.
    to_clock = {call: len(_CALLS) + len(_CLOCK_CALLS) - index for index, call in enumerate(_CLOCK_CALLS, len(_CALLS))}
    to_allow = {call: len(_CALLS) + len(_CLOCK_CALLS) + 2 - index for index, call in enumerate(_CALLS)}
    program = [
        (load, 0, 0, architecture),
        (jump_equal, 1, 0, _X86_64),
        (answer, 0, 0, _KILL),
        (load, 0, 0, number),
        *((jump_equal, left_out, 0, call) for call, left_out in (to_allow | to_clock).items()),
        (answer, 0, 0, _REFUSE),
        *check_clock,
        (answer, 0, 0, _ALLOW),
        (answer, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("=HBBI", *each) for each in program)


def main() -> None:
    """Read a request from standard input, run its code, and write the return values of its function to a pipe.

    The arguments of the command line are the pipe's file descriptor and the parent's process id. ``LOCKED`` is written
    to the pipe before any code runs. If the pipe gets anything else first, no code was run.
    """
    results, parent = map(int, sys.argv[1:])
    # A run ends with the process that waits for it, even if that is killed. Code cannot prevent this, as it could with
    # a pipe by closing it.
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    request: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    os.close(0)
    for name in (*_MODULES, *request["modules"]):
        importlib.import_module(name)
    random.seed(0)
    try:
        lock(request["megabytes"])
    except (Unavailable, OSError, ValueError) as error:
        os.write(results, str(error).encode())
        os._exit(1)
    os.write(results, LOCKED)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(request["code"], "code", "exec"), namespace)
        if request["calls"]:
            returned = [namespace["f"](*arguments) for arguments in request["calls"]]
            os.write(results, json.dumps(returned).encode())
    except SystemExit:
        pass
    except BaseException as error:  # any exception of the code is part of its output
        lines = traceback.extract_tb(error.__traceback__)
        where = next((f"line {each.lineno}: " for each in reversed(lines) if each.filename == "code"), "")
        print(where + "".join(traceback.format_exception_only(error)).strip().splitlines()[-1])
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

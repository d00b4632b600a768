"""What runs in the sandbox: gives up every right that it does not need, then runs the code it is given.

It is started as a file of its own in a fresh interpreter and imports nothing of ours. Rights are given up for good: a
filter of system calls (seccomp) and limits of processor time and memory. No call that takes a path is left, so code can
neither open a file nor see whether one exists. The modules that it can import are loaded before.
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
"""The limit of processor time; and what is written before the results, once all rights are given up."""

_MODULES = (
    *("_strptime", "array", "base64", "bisect", "calendar", "cmath", "collections.abc", "contextlib", "copy", "csv"),
    *("dataclasses", "datetime", "decimal", "difflib", "encodings.ascii", "encodings.latin_1", "enum", "fractions"),
    *("functools", "graphlib", "hashlib", "heapq", "itertools", "math", "numbers", "operator", "pprint", "re"),
    *("statistics", "string", "textwrap", "time", "types", "typing", "unicodedata", "zlib"),
)
"""What code can import besides what this file imports."""
_DEATH_SIGNAL, _NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 1, 38, 22, 2
_X86_64 = 0xC000003E
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
"""What a filter answers; refused calls fail with EPERM, which code sees as a PermissionError."""
_CALLS = (
    *(0, 1, 3, 5, 8, 19, 20),  # read write close fstat lseek readv writev: open files alone
    *(9, 10, 11, 12, 25, 28),  # mmap mprotect munmap brk mremap madvise: its own memory
    *(13, 14, 15, 131),  # rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack: its own handlers, no sending
    *(24, 35, 202, 219),  # sched_yield nanosleep futex restart_syscall: waiting
    *(39, 186, 102, 104, 107, 108),  # getpid gettid getuid getgid geteuid getegid
    *(96, 98, 100),  # gettimeofday getrusage times
    *(318, 334),  # getrandom rseq
    *(60, 231),  # exit exit_group
)
"""By their numbers on x86-64. None takes a path, none makes a file, a process or a thread, and none names another
process."""
_CLOCK_CALLS, _CLOCKS = (228, 229, 230), 16
"""clock_gettime, clock_getres and clock_nanosleep, and the clocks for which they are allowed: the first 16. The other
clocks are those of other processes and of devices."""


class Unavailable(Exception):
    """A right cannot be given up."""


def lock(megabytes: int) -> None:
    """Give up all rights but to compute and to write to the files that are open.

    Raises:
        Unavailable: this machine has no way to give up one of them.
    """
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
        # The first signal can be ignored; a second later comes one that cannot.
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
    """Instructions of the kernel's packet filter: allow the calls listed on this architecture, refuse all others."""
    load, jump_equal, jump_at_least, answer = 0x20, 0x15, 0x35, 0x06
    number, architecture, first_argument = 0, 4, 16  # offsets in what the kernel describes a call by
    check_clock = [(load, 0, 0, first_argument), (jump_at_least, 1, 0, _CLOCKS)]
    # A jump counts the instructions that it leaves out. The listed calls' jumps lead to the answers at the end.
    to_clock = {call: len(_CALLS) + len(_CLOCK_CALLS) - place for place, call in enumerate(_CLOCK_CALLS, len(_CALLS))}
    to_allow = {call: len(_CALLS) + len(_CLOCK_CALLS) + 2 - place for place, call in enumerate(_CALLS)}
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
    """Read a request from standard input, run its code, write what its function returns to the file named.

    Before foreign code runs, that file gets ``LOCKED``; where it gets anything else, no code was run.
    """
    results, parent = map(int, sys.argv[1:])
    # A run ends with the process that waits for it, also where that is killed. Code cannot undo this, as it could by
    # closing a pipe.
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    request: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    os.close(0)
    for name in _MODULES:
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
    except BaseException as error:  # the boundary: whatever strange code raises is its own output
        lines = traceback.extract_tb(error.__traceback__)
        where = next((f"line {each.lineno}: " for each in reversed(lines) if each.filename == "code"), "")
        print(where + "".join(traceback.format_exception_only(error)).strip().splitlines()[-1])
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

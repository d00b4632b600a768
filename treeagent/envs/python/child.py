"""What runs in the sandbox: gives up every right that it does not need, then runs the code it is given.

It is started as a file of its own in a fresh interpreter and imports nothing of ours. Rights are given up for good:
Landlock (no file but Python's library can be read, none written), seccomp (only the system calls listed here: no
socket, no process, no signal, no trace), and limits of processor time and memory.
"""

import bisect  # noqa: F401 - what code commonly imports is loaded while its shared libraries can still be read
import collections  # noqa: F401
import ctypes
import datetime  # noqa: F401
import decimal  # noqa: F401
import fractions  # noqa: F401
import functools  # noqa: F401
import hashlib  # noqa: F401
import heapq  # noqa: F401
import itertools  # noqa: F401
import json
import math  # noqa: F401
import operator  # noqa: F401
import os
import random
import re  # noqa: F401
import resource
import string  # noqa: F401
import struct
import sys
import traceback
from typing import Any

UNAVAILABLE, CPU_SECONDS = 97, 2
"""The exit code where a right cannot be given up, in which case no code is run; and the limit of processor time."""

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_ALL_ACCESS = (1 << 13) - 1
"""The rights that Landlock's first version knows. Those that came later are out of reach by the system calls below."""
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_X86_64 = 0xC000003E
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
"""What a filter answers; refused calls fail with EPERM, which code sees as a PermissionError."""
_CALLS = (
    *(0, 1, 3, 4, 5, 6, 7, 8),  # read write close stat fstat lstat poll lseek
    *(9, 10, 11, 12, 13, 14, 15),  # mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn
    *(17, 19, 20, 21, 23, 24, 25, 28),  # pread64 readv writev access select sched_yield mremap madvise
    *(35, 39, 60, 78, 79, 89),  # nanosleep getpid exit getdents getcwd readlink
    *(96, 98, 99, 100, 102, 104, 107, 108, 110),  # gettimeofday getrusage sysinfo times and who one is
    *(131, 186, 202, 204, 217, 219),  # sigaltstack gettid futex sched_getaffinity getdents64 restart_syscall
    *(228, 229, 230, 231, 257, 262, 267, 269),  # clocks exit_group openat newfstatat readlinkat faccessat
    *(270, 271, 318, 332, 334, 439),  # pselect6 ppoll getrandom statx rseq faccessat2
)
"""By their numbers on x86-64. Not among them is fcntl, whose F_SETOWN sends signals to other processes, nor any call
that changes a file's mode or times, which Landlock does not govern."""


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
    attributes = ctypes.c_uint64(_ALL_ACCESS)
    rules = _check(libc.syscall(_LANDLOCK_CREATE, ctypes.byref(attributes), 8, 0), "Landlock")
    library = os.open(os.path.dirname(os.__file__), os.O_PATH)
    rule = struct.pack("=Qi", _READ_FILE | _READ_DIR, library)
    _check(libc.syscall(_LANDLOCK_ADD, rules, 1, rule, 0), "Landlock")
    _check(libc.syscall(_LANDLOCK_RESTRICT, rules, 0), "Landlock")
    os.close(library)
    os.close(rules)
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
    load, jump_equal, answer = 0x20, 0x15, 0x06
    count = len(_CALLS)
    program = [(load, 0, 0, 4), (jump_equal, 1, 0, _X86_64), (answer, 0, 0, _KILL), (load, 0, 0, 0)]
    # From each to the last instruction, which allows; the one before it refuses.
    program += [(jump_equal, count - place, 0, number) for place, number in enumerate(_CALLS)]
    program += [(answer, 0, 0, _REFUSE), (answer, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *each) for each in program)


def main() -> None:
    """Read a request from standard input, run its code, write what its function returns to the file named."""
    request: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    os.close(0)
    results = int(sys.argv[1])
    random.seed(0)
    try:
        lock(request["megabytes"])
    except (Unavailable, OSError, ValueError) as error:
        print(error)
        sys.stdout.flush()
        os._exit(UNAVAILABLE)
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

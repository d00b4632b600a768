"""End a process with its parent, however the parent ends."""

import fcntl
import os
import select
import signal
import sys


def die_with_parent(lifeline: int, whom: int) -> None:
    """Have the kernel kill ``whom`` when the parent, however it ends, closes the other end of the pipe ``lifeline``.

    A thread that waits for that would wait for the interpreter's lock, too, which a hanging job may hold. Unlike
    PR_SET_PDEATHSIG this follows the parent's process, not the thread that started this one. On systems other than
    Linux only a parent that has ended before is noticed.

    Args:
        lifeline: the reading end. Nothing may be written to the pipe from now on.
        whom: a process, or the negative number of a process group, as for ``os.kill``.
    """
    os.set_inheritable(lifeline, False)
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, whom)
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    ended = select.poll()
    ended.register(lifeline)
    if ended.poll(0):
        os.kill(whom, signal.SIGKILL)  # the parent has ended before

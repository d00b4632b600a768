"""End a process with its parent, however the parent ends."""

import fcntl
import os
import signal
import sys


def kill_at_close(lifeline: int, whom: int) -> None:
    """Have the kernel kill ``whom`` when the last writing end of the pipe ``lifeline`` is closed, as by the end of the
    parent that holds it.

    The parent calls this as soon as it has started a process that inherits the reading end. So the process need not
    have come to any code of its own, and what it does cannot get in the way. Unlike PR_SET_PDEATHSIG this follows the
    parent's process, not the thread that started the other. On systems other than Linux this does nothing.

    Args:
        lifeline: the reading end of a pipe that nothing is written to.
        whom: a process, or the negative number of a process group, as for ``os.kill``.
    """
    if sys.platform == "linux":
        # These belong to the open pipe, not to the descriptor, so they outlive the parent's own reading end.
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, whom)
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)

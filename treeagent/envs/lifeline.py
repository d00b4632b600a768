"""Kill a process when its parent ends, however the parent ends."""

import fcntl
import os
import signal
import sys


def kill_at_close(lifeline: int, process_id: int) -> None:
    """Make the kernel kill ``process_id`` when the last writing end of the pipe ``lifeline`` is closed. This happens at
    the latest when the parent that holds it ends.

    The parent calls this as soon as it has started a process that inherits the reading end. It therefore works before
    the process has run any code of its own, and that code cannot prevent it. Unlike PR_SET_PDEATHSIG, it depends on
    the parent process and not on the thread that started the child. It does nothing on systems other than Linux.

    Args:
        lifeline: the reading end of a pipe that nothing is written to.
        process_id: a process, or the negative number of a process group, as for ``os.kill``.
    """
    if sys.platform == "linux":
        # These settings belong to the open pipe, not to the descriptor. They stay after the parent closes its own
        # reading end.
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, process_id)
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)

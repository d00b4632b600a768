"""The console script, and ``python -m treeagent``. It imports almost nothing, so that an interrupt during the import of
the rest is caught."""

import os
import signal
import sys
import time
from functools import partial
from types import FrameType

_AGAIN_SECONDS = 1.0
"""A repeated signal within this many seconds counts as the same one: ``timeout`` and service managers may send
several."""


def main() -> None:
    """Run the command line. Ctrl-C, SIGTERM and SIGHUP interrupt it; it then exits with 128 plus the signal's
    number."""
    code, at = 128 + signal.SIGINT, -_AGAIN_SECONDS

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal code, at
        if time.monotonic() - at < _AGAIN_SECONDS:
            return
        code, at = 128 + number, time.monotonic()
        # The current handler of Ctrl-C, such as asyncio's. It is no function if Ctrl-C is ignored, as in a script's
        # background job.
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup sets SIGHUP to ignored: keep that
            signal.signal(number, interrupt)
            # A forked child is not the run: it gets the default handler.
            os.register_at_fork(after_in_child=partial(signal.signal, number, signal.SIG_DFL))
    # torch's threads sleep while they wait for each other. By default they spin, which makes a run two to five times
    # as slow as need be while another program is busy.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        from treeagent import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(code)
    except SystemExit as end:
        sys.exit(code if end.code == 128 + signal.SIGINT else end.code)


if __name__ == "__main__":
    main()

"""The console script, and ``python -m treeagent``: so small that an interrupt while the rest is imported is caught."""

import os
import signal
import sys
import time
from functools import partial
from types import FrameType

_AGAIN_SECONDS = 1.0
"""Seconds in which a repeated signal belongs to the first: ``timeout`` and service managers may send several."""


def main() -> None:
    """The command line. Ctrl-C, SIGTERM and SIGHUP interrupt it; it then exits with 128 and the signal's number."""
    code, at = 128 + signal.SIGINT, -_AGAIN_SECONDS

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal code, at
        if time.monotonic() - at < _AGAIN_SECONDS:
            return
        code, at = 128 + number, time.monotonic()
        # What handles Ctrl-C at the moment, such as asyncio; it may be ignored, as in a background job of a script.
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP, for all that it starts
            signal.signal(number, interrupt)
            os.register_at_fork(after_in_child=partial(signal.signal, number, signal.SIG_DFL))  # it is no run
    try:
        from treeagent import cli

        cli.main()
    except KeyboardInterrupt:
        sys.exit(code)
    except SystemExit as end:
        sys.exit(code if end.code == 128 + signal.SIGINT else end.code)


if __name__ == "__main__":
    main()

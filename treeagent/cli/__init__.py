"""The command line, with one file for each group of commands.

Modules that take seconds to import are imported inside the commands, so that ``--help`` is fast.
"""

import errno
import sys
from contextlib import suppress

from treeagent.cli import envs, look, runs
from treeagent.cli.app import app, print_error
from treeagent.pipeline.terminal import close_unwritable, guard_streams

__all__ = ["main"]

app.add_typer(runs.app)
app.add_typer(look.app)
app.add_typer(envs.app, name="envs")
app.add_typer(runs.world, name="world")


def main() -> None:
    """Run the command line. Exits with 2 on user errors, with 1 if the output is a closed pipe, with 130 if
    interrupted."""
    guard_streams()
    try:
        app()
    except (OSError, SystemExit) as error:
        reason = close_unwritable()
        if reason is None and isinstance(error, OSError) and error.errno == errno.ENOSPC:
            reason = error  # from an unbuffered stream, or from a file that the error does not name
        if reason is None:
            raise
        if reason.errno == errno.EPIPE:
            sys.exit(1)
        with suppress(OSError):
            print_error(f"cannot write the output: {reason.strerror}: free some space, or send it elsewhere")
        close_unwritable()
        sys.exit(2)

"""Calls the command line in this process, where torch is already imported: starting a process takes seconds."""

import gc
import os
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from treeagent.cli.app import app
from treeagent.pipeline.build import close_environments

CONFIG = Path(__file__).parents[1] / "configs" / "debug.toml"
"""The recipe that runs all stages in the least time."""
PROGRAM = Path(sys.executable).parent / "treeagent"
"""The console script, for the few tests that need a real process: to kill, interrupt or freshly import it."""


@dataclass(frozen=True)
class Ended:
    """What a process would have left: its exit code and both output streams."""

    returncode: int
    stdout: str
    stderr: str


def treeagent(*arguments: str | Path, cwd: Path | None = None, given: str | None = None) -> Ended:
    """Call the command line as ``treeagent ARGUMENTS``, optionally in another folder or with ``given`` as standard
    input.

    An error that the command line does not turn into a sentence is returned as exit code 1 with its traceback, as from
    a process. Environment variables, the current folder and the warning filters are restored afterwards.
    """
    forget()
    environment, folder = dict(os.environ), Path.cwd()
    try:
        if cwd is not None:
            os.chdir(cwd)
        with warnings.catch_warnings():
            warnings.simplefilter("default")  # pytest turns warnings into errors, the command line does not
            result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=given)
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        forget()
    said = result.stderr
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        said += "".join(traceback.format_exception(result.exception))
    return Ended(result.exit_code, result.stdout, said)


def forget() -> None:
    """Empty the caches of models and environments. They are keyed by path, and a test may replace what a path holds."""
    close_environments()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the end of a process would close these files
        for name, module in list(sys.modules.items()):
            if name.startswith(("treeagent.pipeline.", "treeagent.contrib.")):
                for cached in vars(module).values():
                    if hasattr(cached, "cache_clear") and hasattr(cached, "cache_info"):
                        cached.cache_clear()
        gc.collect()

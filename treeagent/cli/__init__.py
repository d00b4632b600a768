"""The command line, with one file for each group of commands. A command's file is imported when the command is used, so
that ``--help`` is fast."""

from treeagent.cli.app import main

__all__ = ["main"]

"""The application that all commands belong to, and its reports of errors."""

import errno
import importlib
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from treeagent import seams
from treeagent.visible import close_unwritable, guard_streams, visible

COMMANDS: Mapping[str, tuple[str, str]] = {
    "quickstart": ("treeagent.cli.runs", "Run the whole pipeline once: imitate, search, update, evaluate."),
    "train": ("treeagent.cli.runs", "Search and learn in rounds."),
    "collect": ("treeagent.cli.runs", "Search training tasks with a policy: one search tree for each task."),
    "update": ("treeagent.cli.runs", "Update a policy once, by one method, from the trees of a run."),
    "eval": ("treeagent.cli.runs", "Evaluate a policy on held-out tasks, by itself and with search."),
    "show": ("treeagent.cli.look", "Show a run: its stages, results, search trees or episodes."),
    "report": ("treeagent.cli.look", "Write the report of a run again."),
    "recipes": ("treeagent.cli.look", "List the recipes that come with the package."),
    "envs": ("treeagent.cli.envs", "List environments, check one, write the start of a new one."),
    "world": ("treeagent.cli.world", "Fit a world model to a run's steps, and audit it on held-out tasks."),
}
"""The core's commands: the module whose ``app`` holds each, and its line of help."""

_UsageError: Any = typer.BadParameter.__base__
"""Typer's usage errors. The class has no public name that is the same in all versions."""


def commands() -> Mapping[str, tuple[str, str]]:
    """The core's commands, and after them those of ``treeagent.contrib``."""
    return {**COMMANDS, **seams.commands()}


def load_command(name: str) -> Any:
    """Import a command or a group of commands."""
    plain = typer.Typer(add_completion=False, rich_markup_mode=None)
    plain.add_typer(importlib.import_module(commands()[name][0]).app, name=name)
    plain.callback()(lambda: None)  # which makes it a group
    group: Any = cast(TyperGroup, get_command(plain)).commands[name]
    only = list(group.commands.values())
    return group.commands.get(name, only[0] if len(only) == 1 else group)


class _Unloaded(TyperCommand):
    """A command whose module is imported when it is used."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        return load_command(str(self.name)).make_context(*arguments, **options)


class Commands(TyperGroup):
    """All commands. User errors are printed as one sentence; other errors keep their traceback."""

    def list_commands(self, context: Any) -> list[str]:
        return [*super().list_commands(context), *commands()]

    def get_command(self, context: Any, name: str) -> Any:
        known = commands()
        if name not in known:
            return super().get_command(context, name)
        return _Unloaded(name, callback=None, help=known[name][1])

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            print_error("interrupted; give the same command to go on, with --resume if it has that option")
            raise typer.Exit(130) from None
        except _UsageError as error:
            error.message = visible(error.message, lines=True)  # it quotes what was typed or pasted
            raise
        except SystemExit as error:  # no command raises it, so the user's environment did, perhaps with code 0
            print_error(
                f"code that the command loaded ended the program ({error!r}): let it raise an Exception instead"
            )
            raise typer.Exit(1) from None
        except Exception as error:
            sentence = _sentence(error)
            if sentence is None:
                raise
            print_error(sentence)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=Commands,
    help="Train LLM agents by tree search: search an environment, learn from the search trees, evaluate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Rich takes long to import, and exits by itself where nobody reads
)


@app.callback()
def _group() -> None:
    """Typer makes a group of an app that has a callback."""


def main() -> None:
    """Run the command line. Exits with 2 on user errors, 1 if the output is a closed pipe, 130 if interrupted."""
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


def _sentence(error: Exception) -> str | None:
    if isinstance(error, FileNotFoundError):
        return f"{error.filename} does not exist: check the path" if error.filename else str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"cannot read or write {error.filename}: {error.strerror}: check the path and its permissions"
    return str(error) if type(error).__module__.startswith("treeagent.") else None


def print_error(sentence: str) -> None:
    from rich.text import Text

    from treeagent.pipeline.terminal import Terminal

    Terminal(stderr=True).print(Text(sentence, style="red"), soft_wrap=True)

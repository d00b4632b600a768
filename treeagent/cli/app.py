"""The application that all commands belong to, and its reports of errors."""

import importlib
from typing import Any

import typer
from rich.text import Text
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from treeagent import seams
from treeagent.pipeline.terminal import Terminal
from treeagent.visible import visible

_UsageError: Any = typer.BadParameter.__base__
"""Base class of Typer's usage errors. It has no public name that is the same in all versions of Typer."""


class AddedCommand(TyperCommand):
    """A command or group of commands of ``treeagent.contrib``. Its module is imported when it is used."""

    def __init__(self, name: str, module: str, help: str) -> None:
        super().__init__(name, callback=None, help=help)
        self._module = module

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        command = get_command(importlib.import_module(self._module).app)
        return command.make_context(*arguments, **options)


class Commands(TyperGroup):
    """The core's commands, and after them those of ``treeagent.contrib``.

    User errors, and exits by the user's code, are printed as one sentence. Other errors keep their traceback.
    """

    def list_commands(self, context: Any) -> list[str]:
        return list(dict.fromkeys((*super().list_commands(context), *seams.commands())))

    def get_command(self, context: Any, name: str) -> Any:
        added = seams.commands().get(name)
        return AddedCommand(name, *added) if added else super().get_command(context, name)

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            print_error("interrupted; give the same command to go on, with --resume if it has that option")
            raise typer.Exit(130) from None
        except _UsageError as error:
            error.message = visible(error.message)  # it quotes what was typed or pasted
            raise
        except SystemExit as error:
            # No command raises SystemExit, so the user's environment did, without a message and perhaps with code 0.
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


def _sentence(error: Exception) -> str | None:
    if isinstance(error, FileNotFoundError):
        return f"{error.filename} does not exist: check the path" if error.filename else str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"cannot read or write {error.filename}: {error.strerror}: check the path and its permissions"
    # All exceptions of treeagent have one sentence as their message, which names the value and the fix.
    return str(error) if type(error).__module__.startswith("treeagent.") else None


def print_error(sentence: str) -> None:
    """Print an error message."""
    Terminal(stderr=True).print(Text(sentence, style="red"), soft_wrap=True)

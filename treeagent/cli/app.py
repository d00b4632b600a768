"""The application that all commands belong to, and its reports of errors."""

from typing import Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from treeagent.pipeline.terminal import Terminal
from treeagent.visible import visible

_UsageError: Any = typer.BadParameter.__base__
"""Base class of Typer's usage errors. It has no public name that is the same in all versions of Typer."""


class Commands(TyperGroup):
    """Print user errors, and exits by the user's code, as one sentence. Other errors keep their traceback."""

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            command = self.get_command(context, context.invoked_subcommand or "")
            resumes = command is not None and any(each.name == "resume" for each in command.params)
            print_error(f"interrupted; {'continue with --resume' if resumes else 'give the same command to go on'}")
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
    rich_markup_mode="rich",
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

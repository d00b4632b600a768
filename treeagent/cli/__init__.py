"""The command line, one file a group of commands.

What takes seconds to import is imported inside the commands, so that ``--help`` answers at once.
"""

from treeagent.cli import data, envs, look, runs, world
from treeagent.cli.app import app
from treeagent.run.terminal import guard_streams

__all__ = ["main"]

app.add_typer(runs.app)
app.add_typer(look.app)
app.add_typer(data.app)
app.add_typer(envs.app, name="envs")
app.add_typer(world.app, name="world")


def main() -> None:
    """Run the command line. Exits with 2 on user errors, with 130 when interrupted."""
    guard_streams()
    app()

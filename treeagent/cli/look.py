"""Commands to inspect and export runs, and to list recipes."""

from typing import Annotated, Literal

import typer
from rich.table import Column, Table
from rich.text import Text

from treeagent.cli.options import RunFolder, require_trees
from treeagent.pipeline.folder import Run, RunError
from treeagent.pipeline.recipes import recipes as known_recipes
from treeagent.pipeline.report.page import report as write_page
from treeagent.pipeline.report.show import show_episodes, show_run, show_task
from treeagent.pipeline.terminal import Terminal
from treeagent.search.record import check_format
from treeagent.store import digest as digest_of
from treeagent.store import read_as

app = typer.Typer()


@app.command()
def recipes() -> None:
    """List the recipes that come with the package: each has a name for --config and a description.

    Example: treeagent recipes
    """
    table = Table(Column("recipe", no_wrap=True), "what it is for", box=None, pad_edge=False)
    for name, sentence in known_recipes().items():
        table.add_row(name, Text(sentence))
    Terminal().print(table)


@app.command()
def show(
    run_folder: RunFolder,
    task_id: Annotated[str | None, typer.Argument(metavar="[TASK_ID]", help="Print the trees of this task.")] = None,
    digest: Annotated[bool, typer.Option("--digest", help="Print a hash over all trees, and nothing else.")] = False,
    depth: Annotated[
        int | None, typer.Option("--depth", min=1, help="Print this many steps of each tree or episode.")
    ] = None,
    episodes: Annotated[
        Literal["failed", "solved", "all"] | None,
        typer.Option("--episodes", help="Print these episodes of evaluations instead, and why failed ones failed."),
    ] = None,
) -> None:
    """Show a run: its stages and results, the search trees of one task, the episodes of its evaluations as
    conversations, or a hash that identifies all trees.

    Reads RUN, also while it is being written. Writes nothing.

    Example: treeagent show runs/shop shop1-1000-0-train-17 --depth 3
    """
    run = Run.open(run_folder)
    if episodes is not None:
        show_episodes(run, episodes, Terminal(), task_id=task_id, depth=depth)
    elif digest:
        require_trees(run_folder)
        Terminal(soft_wrap=True).print(digest_of(read_as(check_format, run.trees)))
    elif task_id is not None:
        require_trees(run_folder)
        show_task(run, task_id, Terminal(), depth=depth)
    else:
        show_run(run, Terminal())


@app.command()
def report(run_folder: RunFolder) -> None:
    """Write the report of a run again: results, warnings and one search tree on one page.

    Reads RUN, writes RUN/report.html.

    Example: treeagent report runs/shop
    """
    run = Run.open(run_folder)
    if not run.stages():
        raise RunError(f"{run.path} has finished no stage, so that there is nothing to report: go on with --resume")
    Terminal(soft_wrap=True).print(str(write_page(run)))

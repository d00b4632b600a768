"""``treeagent view``: one page that shows the trees and episodes of runs."""

from pathlib import Path
from typing import Annotated

import typer

from treeagent.contrib.viewer.collect import collect
from treeagent.contrib.viewer.page import write_page
from treeagent.pipeline.terminal import Terminal

app = typer.Typer()


@app.command()
def view(
    run_folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="The folders of one or more runs.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.html", help="The page's file; by default view.html in the first RUN."),
    ] = None,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write a page that shows the trees and episodes of runs: one file that needs no server and no network.

    Reads RUN, also while it is being written, and writes RUN/view.html.

    Example: treeagent view runs/shop --open
    """
    page, content = out or run_folders[0] / "view.html", collect(run_folders)
    write_page(page, content)
    size, count = page.stat().st_size / 1e6, len(content.index["trees"])
    Terminal().print(f"{count:,} trees and episodes in {page} ({size:,.1f} MB)", soft_wrap=True)
    if browser:
        typer.launch(page.resolve().as_uri())

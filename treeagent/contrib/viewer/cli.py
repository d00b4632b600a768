"""``treeagent view``: one page that shows the trees and episodes of runs."""

from pathlib import Path
from typing import Annotated

import typer

from treeagent.contrib.viewer.follow import write_and_follow
from treeagent.pipeline.terminal import Terminal

app = typer.Typer()


@app.command()
def view(
    run_folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="The folders of one or more runs.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.html", help="The page's file; by default view.html in the first RUN."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Show only the trees of this name, such as collect-3. Give it again for more."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Write the page again as the runs go on, until interrupted or finished.")
    ] = False,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write a page that shows the trees and episodes of runs: one file that needs no server and no network.

    Reads RUN, also while it is being written, and writes RUN/view.html.

    Example: treeagent view runs/shop --open
    """

    def written(page: Path, trees: int, first: bool) -> None:
        size = page.stat().st_size / 1e6
        Terminal().print(f"{trees:,} trees and episodes in {page} ({size:,.1f} MB)", soft_wrap=True)
        if first and browser:
            typer.launch(page.resolve().as_uri())

    page = out or run_folders[0] / "view.html"
    write_and_follow(run_folders, page, written, names=only or (), follow=follow)

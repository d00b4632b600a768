"""``treeagent view``: one page that shows the trees and episodes of runs."""

import fcntl
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from treeagent.contrib.viewer.collect import Content, collect
from treeagent.contrib.viewer.page import write_page
from treeagent.pipeline.terminal import Terminal

app = typer.Typer()
_EVERY = 2.0
"""Seconds between two reads of the runs."""


@app.command()
def view(
    run_folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="The folders of one or more runs.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.html", help="The page's file; by default view.html in the first RUN."),
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

    page = out or run_folders[0] / "view.html"
    content: Content | None = None
    going, shown = True, False
    while going:
        going = follow and any(map(_is_being_written, run_folders))  # before the read, so that the end is shown too
        before, content = content, collect(run_folders)
        if content != before or not going:
            write_page(page, content, follow=going)
            size = page.stat().st_size / 1e6
            count = len(content.index["trees"])
            Terminal().print(f"{count:,} trees and episodes in {page} ({size:,.1f} MB)", soft_wrap=True)
        if browser and not shown:
            typer.launch(page.resolve().as_uri())
        shown = True
        if going:
            time.sleep(_EVERY)


def _is_being_written(run: Path) -> bool:
    """Whether a process holds the lock of a run."""
    try:
        lock = os.open(run / ".lock", os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False

"""``treeagent view``: one page that shows the trees and episodes of runs, in one file with script, style and data. Its
security policy forbids it to load anything."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import orjson
import typer

from treeagent.contrib.viewer.collect import collect, squeeze
from treeagent.pipeline.terminal import Terminal
from treeagent.store import write_atomic

app = typer.Typer()


def bundled(name: str) -> str:
    """The content of a file that esbuild bundled from ``viewer/``."""
    return files("treeagent.contrib.viewer").joinpath(name).read_text(encoding="utf-8")


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
    data = {"index": squeeze(orjson.dumps(content.index))}
    data |= {f"piece-{number}": each for number, each in enumerate(content.pieces)}
    write_atomic(page, html("treeagent: " + ", ".join(run["name"] for run in content.index["runs"]), data).encode())
    size, count = page.stat().st_size / 1e6, len(content.index["trees"])
    Terminal().print(f"{count:,} trees and episodes in {page} ({size:,.1f} MB)", soft_wrap=True)
    if browser:
        typer.launch(page.resolve().as_uri())


def html(title: str, data: Mapping[str, str], *, script: str = "viewer.js", connect: Sequence[str] = ()) -> str:
    """The page as text. Its security policy allows only this script, this style and connections to ``connect``, so that
    no text of an agent can run. ``data``: gzip in base64, by the ``id`` of its element."""
    code, style = bundled(script), bundled(script.replace(".js", ".css"))
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(code)}",
            f"style-src {_hash(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            *([f"connect-src {' '.join(connect)}"] if connect else []),
        ]
    )
    held = "".join(f'<script type="application/gzip" id="{name}">{each}</script>\n' for name, each in data.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title>\n<style>{style}</style></head>\n"
        '<body><div id="app"><noscript>This page needs JavaScript; it loads nothing from elsewhere.</noscript></div>\n'
        f"{held}<script>{code}</script></body></html>\n"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

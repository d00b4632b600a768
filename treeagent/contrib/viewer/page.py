"""Writes the viewer's page: one file with script, style and data. Its security policy forbids it to load anything."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

import orjson

from treeagent.contrib.viewer.collect import Content, squeeze
from treeagent.store import write_atomic


def bundled(name: str) -> str:
    """The content of a file that esbuild bundled from ``viewer/``."""
    return files("treeagent.contrib.viewer").joinpath(name).read_text(encoding="utf-8")


def write_page(path: Path, content: Content) -> None:
    index = content.index
    data = {"index": squeeze(orjson.dumps(index))} | {f"piece-{n}": each for n, each in enumerate(content.pieces)}
    write_atomic(path, html("treeagent: " + ", ".join(run["name"] for run in index["runs"]), data).encode())


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

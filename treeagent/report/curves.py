"""Metrics as curves: inline SVG in the colours of the page. Knows rows of metrics; alone imports matplotlib."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

_INK, _LINE, _ACCENT = "#010203", "#010204", "#010205"
_COLOURS = {_INK: "currentColor", _LINE: "var(--line)", _ACCENT: "var(--accent)"}
"""Stand-ins that matplotlib can draw, for colours that only the page knows (light or dark)."""
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "treeagent",
    "text.parse_math": False,
    "axes.unicode_minus": True,
    "font.size": 8,
    "text.color": _INK,
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _LINE,
}
Points = Sequence[tuple[int, float]]


def series(metrics: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """stage -> metric -> (step, value), in the order they first appear; what is no number is left out."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for row in metrics:
        for name, value in row.items():
            if name not in ("stage", "step") and isinstance(value, int | float):
                found.setdefault(row["stage"], {}).setdefault(name, []).append((row["step"], float(value)))
    return found


def curve(title: str, points: Points, place: int) -> str:
    """One curve as an ``<svg>`` element; ``place`` tells its inner ids from those of the page's other curves."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.4, 2.1), layout="constrained")
        axes = figure.add_subplot()
        marker = "o" if len(points) <= 40 else ""
        axes.plot([x for x, _ in points], [y for _, y in points], color=_ACCENT, marker=marker, markersize=2.5)
        axes.set_title(title, loc="left", fontsize=9)
        axes.set_xlabel("step")
        axes.grid(True, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _inline(buffer.getvalue(), place)


def _inline(document: str, place: int) -> str:
    svg = document[document.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)  # HTML's parser knows them
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>c{place}-", svg)
    for stand_in, colour in _COLOURS.items():
        svg = svg.replace(stand_in, colour)
    return svg

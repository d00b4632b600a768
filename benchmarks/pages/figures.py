"""One kind of figure: an arm a line, its mean, 95 % interval and seeds. The same data give the same bytes."""

import io
from collections.abc import Mapping
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks.estimates import Estimate

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small files, short differences
    "svg.hashsalt": "treeagent",
    "text.parse_math": False,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def dots(axis: str, arms: Mapping[str, Estimate], mark: float | None = None, logarithmic: bool = False) -> bytes:
    """An SVG file.

    Args:
        axis: what the numbers are, with their unit.
        mark: where to draw a vertical line, such as 0 for no difference.
        logarithmic: of factors.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 0.7 + 0.28 * len(arms)), layout="constrained")
        axes = figure.add_subplot()
        for place, found in enumerate(arms.values()):
            axes.plot(found.values, [place] * found.seeds, "o", color="#9ecae1", markersize=3)
            axes.errorbar(found.mean, place, xerr=found.half or 0.0, fmt="o", color="#08519c", markersize=5, capsize=3)
        axes.set_yticks(range(len(arms)), list(arms))
        axes.set_ylim(len(arms) - 0.5, -0.5)
        axes.set_xlabel(axis)
        axes.grid(True, axis="x", linewidth=0.4, color="#cccccc")
        if logarithmic:
            axes.set_xscale("log")
        if mark is not None:
            axes.axvline(mark, color="#636363", linewidth=0.8)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return b"\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + b"\n"

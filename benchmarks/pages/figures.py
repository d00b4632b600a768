"""Two kinds of figures, of means with 95 % intervals over seeds. Equal data give equal bytes."""

import io
from collections.abc import Mapping
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks.estimates import Estimate

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # keeps text as text, for small files and short diffs
    "svg.hashsalt": "treeagent",
    "text.parse_math": False,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def dots(axis: str, arms: Mapping[str, Estimate], mark: float | None = None, logarithmic: bool = False) -> bytes:
    """Draw one line per arm, as an SVG file.

    Args:
        axis: what the numbers are, with their unit.
        mark: where to draw a vertical line, such as 0 for no difference.
        logarithmic: whether the axis is logarithmic, for ratios.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 0.7 + 0.28 * len(arms)), layout="constrained")
        axes = figure.add_subplot()
        for index, found in enumerate(arms.values()):
            axes.plot(found.values, [index] * found.seeds, "o", color="#9ecae1", markersize=3)
            axes.errorbar(found.mean, index, xerr=found.half or 0.0, fmt="o", color="#08519c", markersize=5, capsize=3)
        axes.set_yticks(range(len(arms)), list(arms))
        axes.set_ylim(len(arms) - 0.5, -0.5)
        axes.set_xlabel(axis)
        axes.grid(True, axis="x", linewidth=0.4, color="#cccccc")
        if logarithmic:
            axes.set_xscale("log")
        if mark is not None:
            axes.axvline(mark, color="#636363", linewidth=0.8)
        return _svg(figure)


def curves(axis: str, across: str, panels: Mapping[str, Mapping[str, Mapping[float, Estimate]]]) -> bytes:
    """Draw panels side by side, each with a curve for every arm, as an SVG file.

    Args:
        axis: label of the vertical axis, with its unit.
        across: label of the horizontal axis.
        panels: title -> arm -> position on the horizontal axis -> estimate.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.6 * len(panels) + 1.6, 3.2), layout="constrained")
        subplots = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (title, arms) in zip(subplots, panels.items(), strict=True):
            for arm, points in arms.items():
                halves = [point.half or 0.0 for point in points.values()]
                means = [point.mean for point in points.values()]
                axes.errorbar(list(points), means, yerr=halves, marker="o", markersize=3, capsize=2, label=arm)
            axes.set_title(title, fontsize=9)
            axes.set_xlabel(across)
            axes.set_xticks(list(points))
            axes.grid(True, axis="y", linewidth=0.4, color="#cccccc")
        subplots[0].set_ylabel(axis)
        handles, names = subplots[-1].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside right center", frameon=False, fontsize=7)
        return _svg(figure)


def _svg(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return b"\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + b"\n"

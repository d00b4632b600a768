"""Figures as dataclasses, drawn as SVG and written as CSV. Only this module imports matplotlib."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from treeagent.pipeline.report.style import SERIES
from treeagent.store import write_atomic
from treeagent.visible import visible

_INK, _LINE = "#010203", "#010204"
_SERIES = tuple(f"#01020{place}" for place in range(5, 5 + len(SERIES)))
_ON_PAGE = {_INK: "currentColor", _LINE: "var(--line)"} | {
    stand_in: f"var(--series-{place})" for place, stand_in in enumerate(_SERIES)
}
"""CSS colours of the page, by the placeholder that matplotlib draws. CSS resolves them for light or dark mode."""
_STANDALONE = {_INK: "#1c1e21", _LINE: "#dddad2"} | dict(zip(_SERIES, (light for light, _ in SERIES), strict=True))
"""The colours of an SVG file, which has a white background."""
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
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
_LONGEST = 100
"""Most characters of a figure's name, so that every file system accepts it."""
_WIDE = 22
"""Most characters of a label with which the legend has two columns."""
_SPARSE = 40
"""Most points of a line with which every point has a marker."""
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a figure."""

    label: str
    points: Points
    """(x, y) of each point, sorted by x."""
    band: Points = ()
    """(low, high) of each point's 95 % interval; empty if the line has none."""
    kind: Literal["line", "dots", "bars"] = "line"
    """With "bars", each bar is centred at x; its width is 0.9 of the least distance between two points."""
    colour: int = 0
    """Index of the colour in ``SERIES``, modulo its length."""
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure."""

    name: str
    """Name of its files, as made by ``file_name``."""
    title: str
    x: str
    """Label of the x axis."""
    y: str
    """Label of the y axis; empty if the title already says it."""
    lines: Sequence[Line]
    log: bool = False
    """Whether the x axis is logarithmic."""
    share: bool = False
    """Whether the y values are shares from 0 to 1, to be shown in %."""
    diagonal: bool = False
    """Whether to draw the dotted line y = x."""

    @property
    def empty(self) -> bool:
        return not any(line.points for line in self.lines)


def file_name(*words: str) -> str:
    """A name for files and ids: lower case, only letters, digits, dots and dashes, at most ``_LONGEST`` characters."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words)).strip("-.").lower()[:_LONGEST]


def write_chart(folder: Path, chart: Chart) -> str:
    """Write a figure as ``folder/NAME.svg``, and its data as ``folder/NAME.csv``.

    Returns:
        the figure as an ``<svg>`` element in the colours of the page. The ids in it have the figure's name as prefix.

    Raises:
        StoreError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    svg = _svg(chart)
    write_atomic(folder / f"{chart.name}.svg", _standalone(svg).encode())
    write_atomic(folder / f"{chart.name}.csv", data(chart).encode())
    return _inline(svg, chart)


def data(chart: Chart) -> str:
    """The data as CSV: one row per point, with the bounds of its 95 % interval if it has one."""
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["series", visible(chart.x), visible(chart.y or chart.title), "low", "high"])
    for line in chart.lines:
        for index, (x, y) in enumerate(line.points):
            rows.writerow([visible(line.label), x, y, *(line.band[index] if line.band else ("", ""))])
    return file.getvalue()


def _standalone(svg: str) -> str:
    return _coloured(svg, _STANDALONE).replace("<svg ", '<svg style="background:#fff" ', 1)


def _inline(document: str, chart: Chart) -> str:
    svg = document[document.index("<svg") :]
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)  # an HTML parser needs no namespaces
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{chart.name}-", svg)
    label = escape(visible(chart.title))
    return _coloured(svg, _ON_PAGE).replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def _coloured(svg: str, colours: dict[str, str]) -> str:
    for stand_in, colour in colours.items():
        svg = svg.replace(stand_in, colour)
    return re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)


def _svg(chart: Chart) -> str:
    lines = [line for line in chart.lines if line.points]
    legend = len(lines) > 1 or any(line.label for line in lines)
    columns = 1 if max((len(visible(line.label)) for line in lines), default=0) > _WIDE else 2
    legend_height = 0.17 * -(-len(lines) // columns) * legend
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.4, 2.1 + legend_height))
        axes = figure.add_subplot()
        if chart.diagonal:
            xs = [x for line in lines for x, _ in line.points]
            axes.plot([min(xs), max(xs)], [min(xs), max(xs)], color=_INK, linewidth=0.7, dashes=(1, 2))
        for index, line in enumerate(lines):
            _draw(axes, line, _MARKERS[index % len(_MARKERS)])
        axes.set_title(visible(chart.title), loc="left", fontsize=9)
        axes.set_xlabel(visible(chart.x))
        axes.set_ylabel(visible(chart.y))
        axes.grid(True, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        _scale(axes, chart, [x for line in lines for x, _ in line.points])
        if legend:
            figure.legend(loc="lower center", ncols=columns, frameon=False, fontsize=7, handlelength=2.5)
        _set_margins(figure, axes, legend_height)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return buffer.getvalue()


def _set_margins(figure: Figure, axes: Any, legend_height: float) -> None:
    """Leave room for the labels around the axes and for the legend below them, of ``legend_height`` inches.

    The sizes follow from the numbers of characters. Matplotlib's own layouts measure every text instead, which takes
    more than half of the time of a figure.
    """
    width, height = figure.get_size_inches()
    character = 0.068  # inches
    y_labels, x_labels = ([each.get_text() for each in axis.get_majorticklabels()] for axis in (axes.yaxis, axes.xaxis))
    left = 0.12 + 0.2 * bool(axes.get_ylabel()) + character * max(map(len, y_labels), default=0)
    right = 0.1 + character * len(x_labels[-1] if x_labels else "") / 2
    bottom = legend_height + (0.45 if axes.get_xlabel() else 0.28)
    top = 0.4 if axes.yaxis.get_major_formatter().get_offset() else 0.25  # the offset, such as 1e7, is below the title
    axes.set_position((left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height))


def _draw(axes: Any, line: Line, marker: str) -> None:
    colour = _SERIES[line.colour % len(_SERIES)]
    xs, ys = [x for x, _ in line.points], [y for _, y in line.points]
    label = visible(line.label) or None
    if line.kind == "bars":
        width = 0.9 * min((right - left for left, right in pairwise(xs)), default=1.0)
        axes.bar(xs, ys, width=width, color=colour, label=label, alpha=0.75)
        return
    if line.kind == "dots":
        low = [max(y - low, 0.0) for y, (low, _) in zip(ys, line.band, strict=False)]  # rounding can make it negative
        high = [max(high - y, 0.0) for y, (_, high) in zip(ys, line.band, strict=False)]
        whiskers = [low, high] if line.band else None
        axes.errorbar(xs, ys, yerr=whiskers, fmt="D", color=colour, label=label, markersize=4, elinewidth=1)
        return
    every = 1 if len(xs) <= _SPARSE else len(xs) // 6
    style = {"dashes": (4, 2)} if line.dashed else {}
    markers = {"marker": marker, "markersize": 2.5, "markevery": every} if len(xs) <= _SPARSE or label else {}
    axes.plot(xs, ys, color=colour, label=label, linewidth=1.3, **markers, **style)
    if line.band:
        axes.fill_between(
            xs, [low for low, _ in line.band], [high for _, high in line.band], color=colour, alpha=0.13, linewidth=0
        )


def _scale(axes: Any, chart: Chart, xs: Sequence[float]) -> None:
    if chart.log:
        axes.set_xscale("log")
        narrow = max(xs) < 30 * min(xs)  # with powers of ten alone, such an axis would have only one or two labels
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif all(float(x).is_integer() for x in xs):
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    if chart.share:
        bounds = [y for line in chart.lines for y in (*(y for _, y in line.points), *(high for _, high in line.band))]
        top = min(1.0, max(0.1, 1.15 * max(bounds)))
        axes.set_ylim(-0.02 * top, 1.02 * top)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))

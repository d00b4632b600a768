"""HTML parts of the report's pages. Every text is escaped and visible; pages have no script and load nothing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from treeagent.pipeline.report.chart import Chart, write_chart
from treeagent.pipeline.report.style import CSS
from treeagent.visible import visible


def escaped(text: str) -> str:
    """Untrusted text as HTML: invisible characters are made visible, and markup is escaped."""
    return escape(visible(text, lines=True))


def page(title: str, headline: str, sections: Iterable[str], before: str = "") -> bytes:
    """A whole page in UTF-8; ``before`` is HTML that stands above the headline."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escaped(title)}</title><style>{CSS}</style></head><body><main>"
        f'<h1>{escaped(title)}</h1>{before}<p class="headline">{escaped(headline)}</p>{"".join(sections)}'
        "</main></body></html>\n"
    ).encode()


def sentences(texts: Iterable[str]) -> str:
    """HTML with one paragraph per sentence."""
    return "".join(f"<p>{escaped(each)}</p>" for each in texts)


def warnings(texts: Iterable[str]) -> str:
    """HTML with a list in the colour of warnings; empty if there are none."""
    items = "".join(f"<li>{escaped(each)}</li>" for each in texts)
    return f'<ul class="card alarms">{items}</ul>' if items else ""


def table(
    columns: Mapping[str, str],
    rows: Sequence[Mapping[str, str]],
    *,
    words: Iterable[str] = (),
    best: Iterable[int] = (),
    marked: Mapping[tuple[int, str], str] | None = None,
) -> str:
    """HTML with a table in a card; empty if there are no rows.

    Args:
        columns: the heading of each key, in the order of the columns.
        rows: the text of each cell by key; a missing key gives an empty cell.
        words: keys of columns that hold words, which are aligned left.
        best: indices of rows that are shown in bold.
        marked: HTML to add after a cell's text, by row index and key.
    """
    left, stand_out = set(words), set(best)

    def css(key: str) -> str:
        return ' class="word"' if key in left else ""

    heads = "".join(f"<th{css(key)}>{escaped(heading)}</th>" for key, heading in columns.items())
    body = []
    for index, row in enumerate(rows):
        cells = (
            f"<td{css(key)}>{escaped(row.get(key, ''))}{(marked or {}).get((index, key), '')}</td>" for key in columns
        )
        chosen = ' class="best"' if index in stand_out else ""
        body.append(f"<tr{chosen}>{''.join(cells)}</tr>")
    return (
        f'<div class="card"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
        if rows
        else ""
    )


def interval_bar(low: float, value: float, high: float) -> str:
    """HTML that draws a share and its interval on a bar from 0 to 1."""
    return (
        f'<span class="interval"><i style="left:{100 * low:.2f}%;width:{100 * (high - low):.2f}%"></i>'
        f'<b style="left:{100 * value:.2f}%"></b></span>'
    )


def figures(beside: Path, taken: set[str], charts: Sequence[Chart]) -> str:
    """Write each figure to ``beside/figures`` and return HTML that shows them side by side, with links to the files.

    Args:
        beside: the folder of the page.
        taken: the names of the page's figures so far, to which those of ``charts`` are added. A figure whose name is
            taken gets another one.

    Raises:
        StoreError: a file cannot be written.
    """
    cards = []
    for chart in charts:
        name = chart.name
        while name in taken:
            name += "-"
        taken.add(name)
        links = " ".join(f'<a href="figures/{name}.{kind}">{kind.upper()}</a>' for kind in ("svg", "csv"))
        svg = write_chart(beside / "figures", replace(chart, name=name))
        cards.append(f'<figure class="card">{svg}<figcaption>{links}</figcaption></figure>')
    return f'<div class="curves">{"".join(cards)}</div>' if cards else ""

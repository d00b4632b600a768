"""Parts of the report's pages: every text escaped and visible, no script, no network."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from treeagent.report.chart import Chart, write_chart
from treeagent.report.style import CSS
from treeagent.visible import visible


def escaped(text: str) -> str:
    """Foreign text as HTML."""
    return escape(visible(text, lines=True))


def page(title: str, headline: str, sections: Iterable[str], before: str = "") -> bytes:
    """A whole page; ``before`` is HTML that comes before the headline."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escaped(title)}</title><style>{CSS}</style></head><body><main>"
        f'<h1>{escaped(title)}</h1>{before}<p class="headline">{escaped(headline)}</p>{"".join(sections)}'
        "</main></body></html>\n"
    ).encode()


def sentences(said: Iterable[str]) -> str:
    """A paragraph each."""
    return "".join(f"<p>{escaped(each)}</p>" for each in said)


def warnings(said: Iterable[str]) -> str:
    """A list in the colour of warnings; empty where there is nothing to warn of."""
    items = "".join(f"<li>{escaped(each)}</li>" for each in said)
    return f'<ul class="card alarms">{items}</ul>' if items else ""


def table(
    columns: Mapping[str, str],
    rows: Sequence[Mapping[str, str]],
    *,
    words: Iterable[str] = (),
    best: Iterable[int] = (),
    marked: Mapping[tuple[int, str], str] | None = None,
) -> str:
    """A table in a card.

    Args:
        columns: heading of each key, in the order they are shown.
        rows: text of each cell by key; a key that is missing is an empty cell.
        words: keys of columns that hold words, not figures.
        best: indices of rows that stand out.
        marked: HTML behind a cell's text, by index of the row and key.
    """
    left, stand_out = set(words), set(best)

    def css(key: str) -> str:
        return ' class="word"' if key in left else ""

    heads = "".join(f"<th{css(key)}>{escaped(heading)}</th>" for key, heading in columns.items())
    body = []
    for place, row in enumerate(rows):
        cells = (
            f"<td{css(key)}>{escaped(row.get(key, ''))}{(marked or {}).get((place, key), '')}</td>" for key in columns
        )
        chosen = ' class="best"' if place in stand_out else ""
        body.append(f"<tr{chosen}>{''.join(cells)}</tr>")
    return (
        f'<div class="card"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
        if rows
        else ""
    )


def interval_bar(low: float, value: float, high: float) -> str:
    """A share and its interval as a bar from 0 to 1."""
    return (
        f'<span class="interval"><i style="left:{100 * low:.2f}%;width:{100 * (high - low):.2f}%"></i>'
        f'<b style="left:{100 * value:.2f}%"></b></span>'
    )


def figures(beside: Path, charts: Sequence[Chart]) -> str:
    """Cards of figures side by side. Each figure is written to the folder ``figures`` in the page's folder ``beside``,
    and its card links to these files.

    Raises:
        StoreError: the file system refused.
    """
    cards = []
    for chart in charts:
        links = " ".join(f'<a href="figures/{chart.name}.{kind}">{kind.upper()}</a>' for kind in ("svg", "csv"))
        svg = write_chart(beside / "figures", chart)
        cards.append(f'<figure class="card">{svg}<figcaption>{links}</figcaption></figure>')
    return f'<div class="curves">{"".join(cards)}</div>' if cards else ""

"""One self-contained page about a run: no script, no network, every text escaped and visible."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import count
from pathlib import Path
from typing import Any

from treeagent.report.curves import curve, series
from treeagent.report.describe import (
    SIGNAL_COLUMNS,
    SIGNAL_NOTE,
    Row,
    betrayed,
    call_text,
    cell,
    components,
    failures,
    headline,
    judgement,
    marks,
    observation,
    result_columns,
    signal_cell,
    statistics,
)
from treeagent.report.judging import judging_section
from treeagent.report.style import CSS
from treeagent.search.decide import best_path
from treeagent.search.node import Edge, Node, Tree
from treeagent.store import write_atomic
from treeagent.visible import visible

_SHOWN_FIRST = ("validation", "loss", "success", "reward", "rewards/accuracies", "rewards/margins", "entropy", "kl")
"""Metrics whose curves are open on the page; where a stage has none of them, its first ones."""
_OPEN = 3
"""Curves a stage shows before the rest: one line of a desktop page."""


def write_report(
    path: Path,
    *,
    rows: Sequence[Row],
    metrics: Sequence[Mapping[str, Any]],
    config: str,
    provenance: Mapping[str, str],
    alarms: Sequence[str] = (),
    signal: tuple[str, Sequence[Row]] = ("", ()),
    tree: Tree | None = None,
    view: str = "",
    reviews: str = "",
) -> None:
    """Write the page.

    Args:
        rows: results, the starting point first.
        metrics: rows of metrics.jsonl.
        config: the full config, as TOML.
        provenance: what else determined the run, such as the seed and versions.
        alarms: sentences to be warned by.
        signal: as ``latest_signal`` gives it.
        tree: one search tree to look into.
        view: the page of all trees and episodes, as an address beside this page; empty where there is none.
        reviews: the section of ``reviews_html``.

    Raises:
        StoreError: the file cannot be written.
    """
    sections = [
        f"<h2>Warnings</h2>{_warnings(alarms)}" if alarms else "",
        _results(rows),
        _signal(*signal),
        reviews,
        judging_section(metrics),
        _tree(tree, view) if tree else "",
        _curves(metrics),
        _provenance(provenance, config),
    ]
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>treeagent</title><style>{CSS}</style></head><body><main>"
        f'<h1>treeagent</h1><p class="headline">{_escaped(headline(rows))}</p>{"".join(sections)}'
        "</main></body></html>\n"
    )
    write_atomic(path, page.encode())


def _escaped(text: str) -> str:
    return escape(visible(text, lines=True))


def _warnings(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{_escaped(each)}</li>" for each in sentences)
    return f'<ul class="card alarms">{items}</ul>' if items else ""


def _results(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    words, columns = {"policy", "mode"}, result_columns(rows)
    heads = "".join(f'<th class="{"word" if key in words else ""}">{name}</th>' for key, name in columns.items())
    best = max(row["success"] for row in rows)
    body = []
    for row in rows:
        cells = []
        for key in columns:
            bar = _interval(row) if key == "success" and "success_low" in row else ""
            cells.append(f'<td class="{"word" if key in words else ""}">{_escaped(cell(row, key))}{bar}</td>')
        body.append(f'<tr class="{"best" if row["success"] == best else ""}">{"".join(cells)}</tr>')
    said = "".join(f"<p>{_escaped(each)}</p>" for each in (*betrayed(rows), *judgement(rows), *components(rows)))
    return (
        '<h2>Results</h2><div class="card"><table><thead>'
        f"<tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody></table></div>{said}{_warnings(failures(rows))}"
    )


def _signal(name: str, rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    heads = "".join(f"<th>{_escaped(heading)}</th>" for heading in SIGNAL_COLUMNS.values())
    lines = ("".join(f"<td>{_escaped(signal_cell(row, key))}</td>" for key in SIGNAL_COLUMNS) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<h2>How well V tells, {_escaped(name)}</h2><div class="card"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div><p>{_escaped(SIGNAL_NOTE)}</p>"
    )


def _interval(row: Row) -> str:
    low, high, success = (100 * float(row[key]) for key in ("success_low", "success_high", "success"))
    return (
        f'<span class="interval"><i style="left:{low:.2f}%;width:{high - low:.2f}%"></i>'
        f'<b style="left:{success:.2f}%"></b></span>'
    )


def _curves(metrics: Sequence[Mapping[str, Any]]) -> str:
    parts, places = [], count()
    for stage, named in series(metrics).items():
        drawable = {name: points for name, points in named.items() if len(points) > 1}
        order = sorted(
            drawable, key=lambda name: _SHOWN_FIRST.index(name) if name in _SHOWN_FIRST else len(_SHOWN_FIRST)
        )
        cards = [f'<div class="card">{curve(visible(name), drawable[name], next(places))}</div>' for name in order]
        if cards:
            parts.append(f'<h3>{_escaped(stage)}</h3><div class="curves">{"".join(cards[:_OPEN])}</div>')
        if cards[_OPEN:]:
            more = f'<div class="curves">{"".join(cards[_OPEN:])}</div>'
            parts.append(f'<details class="more"><summary>{len(cards) - _OPEN} more</summary>{more}</details>')
    return f"<h2>Curves</h2>{''.join(parts)}" if parts else ""


def _tree(tree: Tree, view: str) -> str:
    chosen = {id(edge) for edge in best_path(tree, "visits")}
    spent = tree.budget
    title = (
        f"Task {tree.task.id}: {spent.simulations} simulations, {spent.environment_steps} environment steps, "
        f"{spent.generated_tokens} generated tokens. N visits, Q mean return, P prior, V estimate, r reward; "
        "the most visited path is open."
    )
    prompt = "\n\n".join(message.content for message in tree.root.state.messages) or tree.task.prompt
    more = (
        f'<a href="{_escaped(view)}">All trees and episodes</a>'
        if view
        else "<code>treeagent view RUN</code> writes a page of all trees and episodes."
    )
    broke = f'<p class="mark">broke off: {_escaped(tree.error)}</p>' if tree.error else ""
    return (
        f'<h2>One search tree</h2><p>{more}</p><p>{_escaped(title)}</p>{broke}<div class="card tree">'
        f'<details><summary>What the agent reads first <span class="figures">V <b>{tree.root.value:.3f}</b></span>'
        f"</summary><pre>{_escaped(prompt)}</pre></details>{''.join(_edges(tree.root, chosen))}</div>"
    )


def _edges(node: Node, chosen: set[int]) -> Iterator[str]:
    for edge in sorted(node.edges, key=lambda edge: -edge.visits):
        if edge.child is None:
            yield f'<div class="leaf untried">{_summary(edge)}</div>'
            continue
        state = ' open class="chosen"' if id(edge) in chosen else ""
        yield f"<details{state}><summary>{_summary(edge)}</summary>"
        yield from _text("thought", edge.action.thought)
        if edge.action.error:
            yield from _text("as sampled", edge.action.text)
        yield from _text("observation", observation(node, edge.child))
        yield from _edges(edge.child, chosen)
        yield "</details>"


def _summary(edge: Edge) -> str:
    figures = "".join(f"<span>{name} <b>{value}</b></span>" for name, value in statistics(edge).items())
    badges = "".join(f'<span class="mark {name}">{name}</span>' for name in marks(edge))
    return f'<code>{_escaped(call_text(edge.action))}</code>{badges}<span class="figures">{figures}</span>'


def _text(label: str, text: str) -> Iterator[str]:
    if text.strip():
        yield f'<p class="label">{label}</p><pre>{_escaped(text.strip())}</pre>'


def _provenance(provenance: Mapping[str, str], config: str) -> str:
    facts = "".join(f"<dt>{_escaped(name)}</dt><dd>{_escaped(value)}</dd>" for name, value in provenance.items())
    return (
        f'<h2>Provenance</h2><div class="card"><dl>{facts}</dl></div>'
        f'<details class="more"><summary>Full config</summary><pre>{_escaped(config)}</pre></details>'
    )

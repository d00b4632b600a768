"""RUN/report.html: a run's results, warnings and one search tree, in one file that loads nothing."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.metadata import version
from itertools import islice
from pathlib import Path

from treeagent.config import dump_config
from treeagent.pipeline.alarms import first_cause
from treeagent.pipeline.folder import SEARCHED, Run
from treeagent.pipeline.report.describe import (
    Row,
    call_text,
    cell,
    failures,
    headline,
    marks,
    more_steps,
    notes,
    observation,
    result_columns,
)
from treeagent.pipeline.report.describe import statistics as edge_figures
from treeagent.pipeline.report.figure import success_by_tokens
from treeagent.search.decide import best_path
from treeagent.search.node import Edge, Node, Tree
from treeagent.search.record import from_record
from treeagent.store import read_as, write_atomic
from treeagent.visible import visible

_PACKAGES = ("treeagent", "torch", "transformers", "trl")
_READ_TREES = 100
"""How many trees of the last collection are read, to choose the one that is shown."""
_DEEPEST = 100
"""How many steps of a path of the tree are shown. Each is indented further than the one before it."""
_CSS = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Content:
    """What the page shows."""

    rows: Sequence[Row] = ()
    """Result rows, the starting point first."""
    alarms: Sequence[tuple[str, str]] = ()
    """(stage, warning), in the order in which they were raised."""
    cause: str = ""
    """The likely reason why nothing could be learned; empty if none is known."""
    tree: Tree | None = None
    provenance: Mapping[str, str] = field(default_factory=dict[str, str])
    config: str = ""
    """All settings, as TOML."""


def report(run: Run) -> Path:
    """Write RUN/report.html. Returns its path.

    Raises:
        CorruptShard, StoreError, RunError: a file of the run is damaged, or the page cannot be written.
    """
    path, stages = run.path / "report.html", run.stages()
    searched = [name for name in run.collections() if SEARCHED.fullmatch(name)]
    trees = list(islice(read_as(from_record, run.trees, searched[-1]), _READ_TREES)) if searched else []
    content = Content(
        rows=run.result_rows(),
        alarms=[(name, sentence) for name, facts in stages.items() for sentence in facts.get("alarms", ())],
        cause=first_cause(stages, trees) if trees else "",
        tree=max(trees, key=_spread, default=None),
        provenance={
            "run": run.path.name,
            "seed": str(run.config.seed),
            "page written by": ", ".join(f"{package} {version(package)}" for package in _PACKAGES),
        },
        config=dump_config(run.config),
    )
    write_atomic(path, render(content))
    return path


def render(content: Content) -> bytes:
    """The page in UTF-8."""
    figure = success_by_tokens(content.rows)
    sections = [
        _warnings(content),
        f'<p class="headline">{escaped(headline(content.rows))}</p>',
        _results(content.rows),
        f'<h2>Success by cost</h2><figure class="card">{figure}</figure>' if figure else "",
        _tree(content.tree) if content.tree else "",
        _provenance(content.provenance, content.config),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>treeagent</title><style>{_CSS}</style></head><body><main><h1>treeagent</h1>{''.join(sections)}"
        "</main></body></html>\n"
    ).encode()


def escaped(text: str) -> str:
    """Untrusted text as HTML: invisible characters are made visible, and markup is escaped."""
    return escape(visible(text, lines=True))


def table(columns: Mapping[str, str], rows: Sequence[Mapping[str, str]], words: Sequence[str] = ()) -> str:
    """HTML with a table in a card; empty if there are no rows.

    Args:
        columns: the heading of each key, in the order of the columns.
        rows: the text of each cell by key; a missing key gives an empty cell.
        words: keys of columns that hold words, which are aligned left.
    """
    css = {key: ' class="word"' if key in words else "" for key in columns}
    heads = "".join(f"<th{css[key]}>{escaped(heading)}</th>" for key, heading in columns.items())
    lines = ("".join(f"<td{css[key]}>{escaped(row.get(key, ''))}</td>" for key in columns) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    whole = f'<div class="card"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    return whole if rows else ""


def _warnings(content: Content) -> str:
    if not content.alarms and not content.cause:
        return ""
    why = f'<p class="cause">Cause: {escaped(content.cause)}</p>' if content.cause else ""
    items = "".join(f"<li>{escaped(words)} <small>({escaped(stage)})</small></li>" for stage, words in content.alarms)
    return f'<section class="card alarms"><h2>Warnings, the earliest first</h2>{why}<ol>{items}</ol></section>'


def _results(rows: Sequence[Row]) -> str:
    columns = result_columns(rows)
    cells = [{key: cell(row, key) for key in columns} for row in rows]
    below = "".join(f"<p>{escaped(each)}</p>" for each in (*notes(rows), *failures(rows)))
    return f"<h2>Results</h2>{table(columns, cells, ('policy', 'mode'))}{below}" if rows else ""


def _spread(tree: Tree) -> float:
    """The sum of squared deviations of Q over the visited edges of a tree."""
    values = [edge.value for node in tree.nodes() for edge in node.edges if edge.visits]
    return statistics.pvariance(values) * len(values) if values else 0.0


def _tree(tree: Tree) -> str:
    chosen = {id(edge) for edge in best_path(tree, "visits")}
    spent = tree.budget
    title = (
        f"Task {tree.task.id}: {spent.simulations} simulations, {spent.environment_steps} environment steps, "
        f"{spent.generated_tokens} generated tokens. N visits, Q mean return, P prior, V estimate, r reward; "
        "the most visited path is open."
    )
    prompt = "\n\n".join(message.content for message in tree.root.state.messages) or tree.task.prompt
    broke = f'<p class="mark">broke off: {escaped(tree.error)}</p>' if tree.error else ""
    return (
        f'<h2>One search tree</h2><p>{escaped(title)}</p>{broke}<div class="card tree">'
        f'<details><summary>What the agent reads first <span class="figures">V <b>{tree.root.value:.3f}</b></span>'
        f"</summary><pre>{escaped(prompt)}</pre></details>{''.join(_edges(tree.root, chosen))}</div>"
    )


def _edges(node: Node, chosen: set[int], depth: int = _DEEPEST) -> Iterator[str]:
    if depth == 0 and node.edges:
        yield f'<p class="label">{more_steps(node)}</p>'
        return
    for edge in sorted(node.edges, key=lambda edge: -edge.visits):
        if edge.child is None:
            yield f'<div class="leaf untried">{_summary(edge)}</div>'
            continue
        state = ' open class="chosen"' if id(edge) in chosen else ""
        yield f"<details{state}><summary>{_summary(edge)}</summary>"
        yield _text("thought", edge.action.thought)
        yield _text("as sampled", edge.action.text if edge.action.error else "")
        yield _text("observation", observation(node, edge.child))
        yield from _edges(edge.child, chosen, depth - 1)
        yield "</details>"


def _summary(edge: Edge) -> str:
    numbers = "".join(f"<span>{name} <b>{value}</b></span>" for name, value in edge_figures(edge).items())
    badges = "".join(f'<span class="mark {name}">{name}</span>' for name in marks(edge))
    return f'<code>{escaped(call_text(edge.action))}</code>{badges}<span class="figures">{numbers}</span>'


def _text(label: str, text: str) -> str:
    return f'<p class="label">{label}</p><pre>{escaped(text.strip())}</pre>' if text.strip() else ""


def _provenance(provenance: Mapping[str, str], config: str) -> str:
    facts = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>" for name, value in provenance.items())
    return (
        f'<h2>Provenance</h2><div class="card"><dl>{facts}</dl></div>'
        f"<details><summary>All settings</summary><pre>{escaped(config)}</pre></details>"
    )

"""RUN/report.html: a run's results, warnings, one figure and one search tree, in one file that loads nothing."""

import math
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
from treeagent.pipeline.report import describe
from treeagent.pipeline.report.describe import Row, cell, more_steps, observation
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
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 320, 50, 150, 12, 42
"""Size and margins of the figure in pixels; labels of points may reach into the right margin."""


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
    """Write RUN/report.html. Returns its path."""
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
    facts = "".join(f"<dt>{_safe(name)}</dt><dd>{_safe(value)}</dd>" for name, value in content.provenance.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>treeagent</title><style>{_CSS}</style></head><body><main><h1>treeagent</h1>{_warnings(content)}"
        f'<p class="headline">{_safe(describe.headline(content.rows))}</p>{_results(content.rows)}'
        + (f'<h2>Success by cost</h2><figure class="card">{figure}</figure>' if figure else "")
        + (_tree(content.tree) if content.tree else "")
        + f'<h2>Provenance</h2><div class="card"><dl>{facts}</dl></div>'
        f"<details><summary>All settings</summary><pre>{_safe(content.config)}</pre></details></main></body></html>\n"
    ).encode()


def _safe(text: str) -> str:
    """Untrusted text as HTML: invisible characters are made visible, and markup is escaped."""
    return escape(visible(text, lines=True))


def _warnings(content: Content) -> str:
    if not content.alarms and not content.cause:
        return ""
    why = f'<p class="cause">Cause: {_safe(content.cause)}</p>' if content.cause else ""
    items = "".join(f"<li>{_safe(words)} <small>({_safe(stage)})</small></li>" for stage, words in content.alarms)
    return f'<section class="card alarms"><h2>Warnings, the earliest first</h2>{why}<ol>{items}</ol></section>'


def _results(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    columns = describe.result_columns(rows)
    css = {key: ' class="word"' if key in ("policy", "mode") else "" for key in columns}
    heads = "".join(f"<th{css[key]}>{_safe(heading)}</th>" for key, heading in columns.items())
    lines = ("".join(f"<td{css[key]}>{_safe(cell(row, key))}</td>" for key in columns) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    below = "".join(f"<p>{_safe(each)}</p>" for each in (*describe.notes(rows), *describe.failures(rows)))
    return (
        f'<h2>Results</h2><div class="card"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
        f"{below}"
    )


def success_by_tokens(rows: Sequence[Row]) -> str:
    """An ``<svg>`` element: success with its 95 % interval over generated tokens a task, on a logarithmic axis. Empty
    if no row generated tokens."""
    points = [
        (row["generated_tokens"] / row["tasks"], row)
        for row in rows
        if row.get("generated_tokens") and row.get("tasks") and "success_low" in row
    ]
    if not points:
        return ""
    low = math.floor(math.log10(min(tokens for tokens, _ in points)))
    high = max(math.ceil(math.log10(max(tokens for tokens, _ in points))), low + 1)

    def x(tokens: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (math.log10(tokens) - low) / (high - low)

    def y(share: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    def text(left: float, top: float, words: str, anchor: str) -> str:
        return f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}">{escape(visible(words))}</text>'

    parts = [text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, "generated tokens a task", "middle")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<path class="grid" d="M{_LEFT} {y(share):.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(text(_LEFT - 6, y(share) + 4, f"{share:.0%}", "end"))
    for power in range(low, high + 1):
        parts.append(f'<path class="grid" d="M{x(10**power):.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>')
        parts.append(text(x(10**power), _HEIGHT - _BOTTOM + 16, f"{10**power:,}", "middle"))
    for tokens, row in points:
        at = x(tokens)
        parts.append(f'<path class="whisker" d="M{at:.1f} {y(row["success_low"]):.1f}V{y(row["success_high"]):.1f}"/>')
        parts.append(f'<circle cx="{at:.1f}" cy="{y(row["success"]):.1f}" r="4"/>')
        parts.append(text(at + 7, y(row["success"]) + 4, f"{row['policy']} {row['mode']}", "start"))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Success by generated tokens a task">'
        f"{''.join(parts)}</svg>"
    )


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
    broke = f'<p class="mark">broke off: {_safe(tree.error)}</p>' if tree.error else ""
    return (
        f'<h2>One search tree</h2><p>{_safe(title)}</p>{broke}<div class="card tree">'
        f'<details><summary>What the agent reads first <span class="figures">V <b>{tree.root.value:.3f}</b></span>'
        f"</summary><pre>{_safe(prompt)}</pre></details>{''.join(_edges(tree.root, chosen))}</div>"
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
        told = {"thought": edge.action.thought, "as sampled": edge.action.text if edge.action.error else ""}
        for label, text in (told | {"observation": observation(node, edge.child)}).items():
            yield f'<p class="label">{label}</p><pre>{_safe(text.strip())}</pre>' if text.strip() else ""
        yield from _edges(edge.child, chosen, depth - 1)
        yield "</details>"


def _summary(edge: Edge) -> str:
    numbers = "".join(f"<span>{name} <b>{value}</b></span>" for name, value in describe.statistics(edge).items())
    badges = "".join(f'<span class="mark {name}">{name}</span>' for name in describe.marks(edge))
    return f'<code>{_safe(describe.call_text(edge.action))}</code>{badges}<span class="figures">{numbers}</span>'

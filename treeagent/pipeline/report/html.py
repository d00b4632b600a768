"""Writes the page of one run. It is self-contained except for links to the files of its figures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from treeagent.contrib.judging.report_judging import judging_section
from treeagent.contrib.judging.report_reward import reward_section
from treeagent.contrib.suite.report import SUITE_COLUMNS, SUITE_NOTE, difference, grouped, suite_cells
from treeagent.pipeline.report.chart import Chart
from treeagent.pipeline.report.curves import SHOWN_FIRST, curves
from treeagent.pipeline.report.describe import (
    SIGNAL_COLUMNS,
    SIGNAL_NOTE,
    Row,
    budget,
    call_text,
    cell,
    components,
    failures,
    headline,
    marks,
    more_steps,
    observation,
    pass_at_n_note,
    result_columns,
    signal_cell,
    statistics,
)
from treeagent.pipeline.report.gather import Alarm, Content
from treeagent.pipeline.report.parts import escaped, figures, interval_bar, page, sentences, table, warnings
from treeagent.search.decide import best_path
from treeagent.search.node import Edge, Node, Tree
from treeagent.store import write_atomic
from treeagent.world_model.fidelity import wilson_interval

Draw = Callable[[Sequence[Chart]], str]
"""Writes figures as files and returns the HTML that shows them."""
_OPEN = 3
"""How many curves of a stage are shown open: one row of a desktop page. The others are folded."""
_DEEPEST = 100
"""How many steps of a path of the tree are shown. Each is indented further than the one before it."""
ANYTIME_NOTE = (
    "The success of a search that had stopped at a smaller budget, from its stored tree. Found: a success was among "
    "the ends that it had reached. Taken: the end that it would have executed was one; without an end yet it counts as "
    "failed, whereas an evaluation then plays on greedily. Simulations side by side end together. Bands and whiskers "
    "are 95 % intervals over tasks."
)
"""Explains the curves of success against cost."""
_CALIBRATION_NOTE = (
    "Groups of states by V, with what followed on average and its 95 % interval; on the dotted line V is right. Before "
    "ends, search chooses what follows: it finds better paths than the policy alone."
)
_COST_COLUMNS = {
    "stage": "stage",
    "seconds": "seconds",
    "generated_tokens": "generated tokens",
    "environment_steps": "environment steps",
    "imagined_steps": "imagined steps",
    "trained_tokens": "tokens trained on",
    "price": "price",
}
_AUDIT_COLUMNS = {
    "of": "steps of",
    "steps": "number",
    "observation_agreement": "observation alike",
    "reward_accuracy": "reward right",
    "termination_accuracy": "end right",
    "unreadable": "unreadable",
}
_ROUND_COLUMNS = {
    "stage": "audit",
    "imagined": "imagined share",
    "lambda_cap": "allowed share",
    "optimism": "optimism",
    "wrong_episodes": "wrong episodes",
}


def write_report(path: Path, content: Content) -> None:
    """Write the page of a run, and its figures to the folder ``figures`` beside it.

    Raises:
        StoreError: a file cannot be written.
    """
    draw = partial(figures, path.parent, set())
    sections = [
        _results(content.rows),
        _coverage(content.rows),
        _part(draw, "What a search reaches with less", content.anytime, ANYTIME_NOTE),
        _part(draw, "What collecting found with less", content.collecting, ""),
        _robustness(content.suite),
        _signal(draw, content),
        _part(draw, "What the trees teach", content.learning_charts, "Of the last collection."),
        _world(draw, content),
        judging_section(content.metrics),
        reward_section(content.reward),
        _costs(content.costs),
        _tree(content.tree) if content.tree else "",
        _curves(draw, curves(content.metrics)),
        _provenance(content.provenance, content.config),
    ]
    write_atomic(path, page("treeagent", headline(content.rows), sections, _alarms(content.alarms, content.cause)))


def _part(draw: Draw, title: str, charts: Sequence[Chart], note: str) -> str:
    return f"<h2>{title}</h2>{draw(charts)}{sentences([note] if note else [])}" if charts else ""


def _alarms(alarms: Sequence[Alarm], cause: str) -> str:
    """The section of warnings, the earliest first. The likely cause, if known, stands above them."""
    if not alarms and not cause:
        return ""
    why = f'<p class="cause">Cause: {escaped(cause)}</p>' if cause else ""
    if not why and len(alarms) > 1:
        why = '<p class="label">The earliest first: what goes wrong early often causes what comes later.</p>'
    items = "".join(f"<li>{escaped(each.sentence)} <small>({escaped(each.stage)})</small></li>" for each in alarms)
    listed = f"<ol>{items}</ol>" if items else ""
    return f'<section class="card alarms" aria-label="Warnings"><h2>Warnings</h2>{why}{listed}</section>'


def _results(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    columns = result_columns(rows)
    start, cells, bars = rows[0], list[dict[str, str]](), dict[tuple[int, str], str]()
    paired = [index for index, row in enumerate(rows) if index and _same_tasks(row, start)]
    if paired:
        columns = _with_difference(columns, start)
    for index, row in enumerate(rows):
        cells.append({key: cell(row, key) for key in columns if key != "against"})
        if index in paired:
            cells[-1]["against"] = difference(row, start)
        if "success_low" in row:
            bars[index, "success"] = interval_bar(row["success_low"], row["success"], row["success_high"])
    most = max(row["success"] for row in rows)
    best = [index for index, row in enumerate(rows) if row["success"] == most]
    note = "Against: mean difference on the same tasks in points [95 % interval over them]."
    notes = sentences((*[note] * bool(paired), *budget(rows), *pass_at_n_note(rows), *components(rows)))
    html = table(columns, cells, words=("policy", "mode"), best=best, marked=bars)
    return f"<h2>Results</h2>{html}{notes}{warnings(failures(rows))}"


def _same_tasks(row: Row, start: Row) -> bool:
    """Whether two rows can be paired by task. All rows of an evaluation have the same tasks, but rows of older versions
    lack ``solved``, the success of each task."""
    return "solved" in row and "solved" in start and len(row["solved"]) == len(start["solved"]) > 1


def _with_difference(columns: Mapping[str, str], start: Row) -> dict[str, str]:
    extended: dict[str, str] = {}
    for key, heading in columns.items():
        extended[key] = heading
        if key == "success":
            extended["against"] = f"against {start['policy']} {start['mode']}"
    return extended


def _coverage(rows: Sequence[Row]) -> str:
    """The section that separates coverage (success found) from judgement (success taken)."""
    cells, bars = list[dict[str, str]](), dict[tuple[int, str], str]()
    for row in rows:
        if (found := row.get("found")) is None:
            continue
        covered = round(found * row["tasks"])
        shares = {"found": (covered, row["tasks"])}
        if row.get("taken") is not None:
            shares["taken"] = (round(row["taken"] * covered), covered)
        for key, (count, of) in shares.items():
            bars[len(cells), key] = interval_bar(*_interval(count, of))
        cells.append(
            {"policy": cell(row, "policy"), "mode": cell(row, "mode"), "success": cell(row, "success")}
            | {key: f"{100 * count / of:.1f} %" for key, (count, of) in shares.items()}
        )
    columns = {
        "policy": "policy",
        "mode": "mode",
        "found": "found: of the tasks",
        "taken": "taken: of those found",
        "success": "success [95 %]",
    }
    note = (
        "Coverage: whether a success was among the ends that search reached. Judgement: whether it executed one where "
        "there was one. If little is found, give a larger budget or a better policy; if little is taken, V judges "
        "badly."
    )
    html = table(columns, cells, words=("policy", "mode"), marked=bars)
    return f"<h2>Coverage and judgement</h2>{html}{sentences([note])}" if cells else ""


def _interval(count: int, of: int) -> tuple[float, float, float]:
    low, high = wilson_interval(count, of)
    return low, count / of, high


def _robustness(rows: Sequence[Row]) -> str:
    """The section of results under disturbances of the environment."""
    parts = []
    for (policy, mode), each in grouped(rows).items():
        cells = [dict(zip(SUITE_COLUMNS, suite_cells(row, each[0]), strict=True)) for row in each]
        parts.append(f"<h3>{escaped(f'{policy}, {mode}')}</h3>{table(SUITE_COLUMNS, cells, words=('under',))}")
    return f"<h2>What policies withstand</h2>{''.join(parts)}{sentences([SUITE_NOTE])}" if parts else ""


def _signal(draw: Draw, content: Content) -> str:
    name, rows = content.signal
    parts = []
    if rows:
        cells = [{key: signal_cell(row, key) for key in SIGNAL_COLUMNS} for row in rows]
        parts.append(
            f"<h2>How well V tells, {escaped(name)}</h2>{table(SIGNAL_COLUMNS, cells)}{sentences([SIGNAL_NOTE])}"
        )
    if content.value:
        title = "" if rows else "<h2>How well V tells</h2>"
        note = [_CALIBRATION_NOTE] if content.value_notes else []
        parts.append(f"{title}{draw(content.value)}{sentences([*content.value_notes, *note])}")
    return "".join(parts)


def _world(draw: Draw, content: Content) -> str:
    """The section on the audit of a world model."""
    audit, parts = content.audit, list[str]()
    if audit:
        rows = [("all", audit)]
        rows += [("all that can be told", audit["determined"])] if audit.get("determined") else []
        rows += list(audit.get("by_kind", {}).items())
        cells = [
            {"of": name, "steps": f"{audited['steps']:,}"}
            | {key: f"{audited[key]:.1%}" for key in _AUDIT_COLUMNS if key not in ("of", "steps")}
            for name, audited in rows
        ]
        replayed = "not replayed" if audit.get("cr") is None else f"{audit['cr']:.0%}"
        note = (
            f"{audit['episodes']} held-out episodes: the imagined return is {audit['optimism']:+.3f} above the real "
            f"one; return or end is wrong in {audit['wrong_episodes']:.0%}. Imagined successes that held in the "
            f"environment: {replayed}. At most {audit['lambda_cap']:.0%} of the trees may grow in the model."
        )
        parts.append(table(_AUDIT_COLUMNS, cells, words=("of",)) + sentences([note]))
    if content.audits:
        cells = [
            {"stage": str(row["stage"])}
            | {key: f"{row[key]:.2f}" for key in _ROUND_COLUMNS if key in row and key != "stage"}
            for row in content.audits
        ]
        parts.append(table(_ROUND_COLUMNS, cells, words=("stage",)))
    parts.append(draw(content.world))
    return f"<h2>World model</h2>{''.join(parts)}" if audit or content.audits else ""


def _costs(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    keys = [key for key in _COST_COLUMNS if any(key in row for row in rows)]
    total: dict[str, Any] = {key: sum(row.get(key, 0) for row in rows) for key in keys if key != "stage"}

    def shown(row: Mapping[str, Any]) -> dict[str, str]:
        return {
            key: str(value) if key == "stage" else f"{value:,.2f}" if key == "price" else f"{value:,.0f}"
            for key, value in row.items()
        }

    cells = [*map(shown, rows), shown({"stage": "all"} | total)]
    note = "Seconds of an evaluation are summed over its workers. Stages that recorded no cost are left out."
    columns = {key: _COST_COLUMNS[key] for key in keys}
    return f"<h2>Cost</h2>{table(columns, cells, words=('stage',), best=[len(rows)])}{sentences([note])}"


def _curves(draw: Draw, charts_by_stage: Mapping[str, Sequence[Chart]]) -> str:
    parts = []
    for stage, charts in charts_by_stage.items():
        order = sorted(
            charts,
            key=lambda chart: SHOWN_FIRST.index(chart.title) if chart.title in SHOWN_FIRST else len(SHOWN_FIRST),
        )
        parts.append(f"<h3>{escaped(stage)}</h3>{draw(order[:_OPEN])}")
        if order[_OPEN:]:
            hidden_charts = draw(order[_OPEN:])
            parts.append(f'<details class="more"><summary>{len(order) - _OPEN} more</summary>{hidden_charts}</details>')
    return f"<h2>Training curves</h2>{''.join(parts)}" if parts else ""


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
        yield from _text("thought", edge.action.thought)
        if edge.action.error:
            yield from _text("as sampled", edge.action.text)
        yield from _text("observation", observation(node, edge.child))
        yield from _edges(edge.child, chosen, depth - 1)
        yield "</details>"


def _summary(edge: Edge) -> str:
    numbers = "".join(f"<span>{name} <b>{value}</b></span>" for name, value in statistics(edge).items())
    badges = "".join(f'<span class="mark {name}">{name}</span>' for name in marks(edge))
    return f'<code>{escaped(call_text(edge.action))}</code>{badges}<span class="figures">{numbers}</span>'


def _text(label: str, text: str) -> Iterator[str]:
    if text.strip():
        yield f'<p class="label">{label}</p><pre>{escaped(text.strip())}</pre>'


def _provenance(provenance: Mapping[str, str], config: str) -> str:
    facts = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>" for name, value in provenance.items())
    return (
        f'<h2>Provenance</h2><div class="card"><dl>{facts}</dl></div>'
        f'<details class="more"><summary>Full config</summary><pre>{escaped(config)}</pre></details>'
    )

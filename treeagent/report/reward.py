"""The audit of a reward model, on the terminal and on the page of a run."""

from collections.abc import Mapping
from html import escape
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

_FIGURES = {
    "tasks": "held-out tasks",
    "ends": "ends of episodes",
    "pairs": "pairs of ends of one task",
    "pair_accuracy": "pairs in the right order",
    "longer_worse": "pairs whose longer end is worse",
    "longer_worse_accuracy": "of these in the right order",
    "auc": "AUC over all tasks",
    "siblings": "pairs of siblings",
    "sibling_auc": "siblings in the right order",
    "calibration_error": "expected calibration error",
    "length_correlation": "correlation of score and length",
    "paid_length_correlation": "correlation of return and length",
    "cap": "most weight",
}
_NOTE = (
    "Best of n: the end of highest score among n of a task. A return that falls while the score rises tells of a "
    "reward model that is optimised too far. Most weight: the least share of the possible gain that choosing by it "
    "brings, lower end of the 95 % interval over tasks."
)


def reward_table(audit: Mapping[str, Any]) -> Group:
    """The figures of an audit, and the curve of the best of n."""
    table = Table("audit on held-out tasks", "", box=None)
    for name, words in _FIGURES.items():
        table.add_row(words, _number(audit.get(name)))
    curve = Table("best of n", "score", "return", "possible", box=None)
    for point in audit.get("best_of", ()):
        curve.add_row(*(_number(point[name]) for name in ("n", "score", "paid", "possible")))
    return Group(table, Text(), curve)


def reward_section(audit: Mapping[str, Any]) -> str:
    """The same as HTML; empty where there is no audit."""
    if not audit:
        return ""
    rows = "".join(
        f'<tr><td class="word">{escape(words)}</td><td>{_number(audit.get(name))}</td></tr>'
        for name, words in _FIGURES.items()
    )
    points = "".join(
        f"<tr>{''.join(f'<td>{_number(point.get(name))}</td>' for name in ('n', 'score', 'paid', 'possible'))}</tr>"
        for point in audit.get("best_of", ())
    )
    return (
        f'<h2>Audit of the reward model</h2><div class="card"><table><tbody>{rows}</tbody></table></div>'
        '<div class="card"><table><thead><tr><th>best of n</th><th>score</th><th>return</th><th>possible</th></tr>'
        f"</thead><tbody>{points}</tbody></table></div><p>{_NOTE}</p>"
    )


def _number(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"

"""The audit of a reward model, as tables for the terminal and for the page of a run."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from treeagent.pipeline.report.parts import sentences
from treeagent.pipeline.report.parts import table as html_table

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
_CURVE = {"n": "best of n", "score": "score", "paid": "return", "possible": "possible"}
_NOTE = (
    "Best of n: the end of highest score among n of a task. A return that falls while the score rises tells of a "
    "reward model that is optimised too far. Most weight: the least share of the possible gain that choosing by it "
    "brings, lower end of the 95 % interval over tasks."
)


def reward_table(audit: Mapping[str, Any]) -> Group:
    """The figures of an audit and its best-of-n curve, for the terminal."""
    table = Table("audit on held-out tasks", "", box=None)
    for name, words in _FIGURES.items():
        table.add_row(words, _number(audit.get(name)))
    curve = Table(*_CURVE.values(), box=None)
    for point in audit.get("best_of", ()):
        curve.add_row(*(_number(point[name]) for name in _CURVE))
    return Group(table, Text(), curve)


def reward_section(audit: Mapping[str, Any]) -> str:
    """The figures of an audit and its best-of-n curve, as an HTML section; empty if there is no audit."""
    if not audit:
        return ""
    rows = [{"": words, "figure": _number(audit.get(name))} for name, words in _FIGURES.items()]
    points = [{name: _number(point[name]) for name in _CURVE} for point in audit.get("best_of", ())]
    figures = html_table({"": "audit on held-out tasks", "figure": ""}, rows, words=("",))
    return f"<h2>Audit of the reward model</h2>{figures}{html_table(_CURVE, points)}{sentences([_NOTE])}"


def _number(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"

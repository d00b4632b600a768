"""The section on judges and tiers: the ends that they judged, their costs, and their agreement with the verifier and
with people."""

from collections.abc import Mapping, Sequence
from typing import Any

from treeagent.pipeline.report.parts import sentences, table

_GROUPS = ("tier/", "judge/", "agreement/")
_NOTE = "tier: share of ends that it decides. agreement: share of equal words on success, and Cohen's κ."


def judging_section(metrics: Sequence[Mapping[str, Any]]) -> str:
    """HTML with a table of the figures of each stage that used a judge or tiers; empty if no stage did."""
    stages: dict[str, dict[str, float]] = {}
    for row in metrics:
        if figures := {name: value for name, value in row.items() if name.startswith(_GROUPS)}:
            stages.setdefault(str(row["stage"]), {}).update(figures)
    if not stages:
        return ""
    names = sorted({name for figures in stages.values() for name in figures}, key=_order)
    rows = [{"": name} | {stage: _number(figures.get(name)) for stage, figures in stages.items()} for name in names]
    html = table({"": "figure"} | {stage: stage for stage in stages}, rows, words=("",))
    return f"<h2>Who judged the ends</h2>{html}{sentences([_NOTE])}"


def _order(name: str) -> tuple[int, str]:
    return next(index for index, group in enumerate(_GROUPS) if name.startswith(group)), name


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"

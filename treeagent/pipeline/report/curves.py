"""Figures of the metrics that a run logged."""

from collections.abc import Mapping, Sequence
from typing import Any

from treeagent.pipeline.report.chart import Chart, Line, file_name
from treeagent.visible import visible

SHOWN_FIRST = ("validation", "loss", "success", "reward", "rewards/accuracies", "rewards/margins", "entropy", "kl")
"""Metrics whose curves come first on the page, in this order. Others follow in the order of logging."""


def series(metrics: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """stage -> metric -> [(step, value)], in order of first appearance. Values that are not numbers are left out."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for row in metrics:
        for name, value in row.items():
            if name not in ("stage", "step") and isinstance(value, int | float):
                found.setdefault(row["stage"], {}).setdefault(name, []).append((row["step"], float(value)))
    return found


def curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[Chart]]:
    """For each stage, one figure for every metric that has more than one point."""
    charts = dict[str, list[Chart]]()
    for stage, metrics_of_stage in series(metrics).items():
        for metric, points in metrics_of_stage.items():
            if len(points) > 1:
                name = file_name("curve", visible(stage), visible(metric))
                charts.setdefault(stage, []).append(Chart(name, metric, "step", "", [Line("", points)]))
    return charts

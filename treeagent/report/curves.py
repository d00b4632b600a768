"""Metrics of training as figures."""

from collections.abc import Mapping, Sequence
from typing import Any

from treeagent.report.chart import Chart, Line, file_name
from treeagent.visible import visible

SHOWN_FIRST = ("validation", "loss", "success", "reward", "rewards/accuracies", "rewards/margins", "entropy", "kl")
"""Metrics whose curves are open on the page; where a stage has none of them, its first ones."""


def series(metrics: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """stage -> metric -> (step, value), in the order they first appear; what is no number is left out."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for row in metrics:
        for name, value in row.items():
            if name not in ("stage", "step") and isinstance(value, int | float):
                found.setdefault(row["stage"], {}).setdefault(name, []).append((row["step"], float(value)))
    return found


def curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[Chart]]:
    """A figure for each metric that has more than one point, by stage."""
    drawn, taken = dict[str, list[Chart]](), set[str]()
    for stage, named in series(metrics).items():
        for metric, points in named.items():
            if len(points) > 1:
                name = file_name("curve", visible(stage), visible(metric))
                while name in taken:
                    name += "-"
                taken.add(name)
                drawn.setdefault(stage, []).append(Chart(name, metric, "step", "", [Line("", points)]))
    return drawn

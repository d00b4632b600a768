"""Gathers the content of a run's page from its folder. Reads at most ``MOST_TREES`` trees of each name."""

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from treeagent.contrib.judging.constraint import path_costs, within_budgets
from treeagent.pipeline.alarms import first_cause
from treeagent.pipeline.folder import SEARCHED, Run
from treeagent.pipeline.outcomes import stage_of_row
from treeagent.pipeline.report.anytime import COSTS, Progress, anytime_charts, moments
from treeagent.pipeline.report.chart import Chart, Line, Points, file_name
from treeagent.pipeline.report.describe import Row, latest_signal
from treeagent.search.node import Edge, Tree, solved
from treeagent.search.record import from_record
from treeagent.store import read_as, shard_names
from treeagent.views.advantages import advantages
from treeagent.views.pairs import compared_siblings, compared_trajectories
from treeagent.views.signal import (
    Estimated,
    calibration,
    calibration_error,
    estimated_ends,
    estimated_states,
)

MOST_TREES = 1000
"""Figures are made from this many first trees of a name; more would change a share by less than its interval."""
_MOST_CURVES = 5
"""How many rounds of collecting one figure shows: evenly spaced, with the first and the last."""
_BARS = 20


@dataclass(frozen=True, slots=True)
class Alarm:
    """A warning of a stage."""

    stage: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Content:
    """The whole content of a run's page."""

    rows: Sequence[Row] = ()
    """Result rows, the starting point first."""
    alarms: Sequence[Alarm] = ()
    """Warnings, in the order in which they were raised."""
    cause: str = ""
    """The likely reason why nothing could be learned; empty if search found a success, or if no reason is known."""
    signal: tuple[str, Sequence[Row]] = ("", ())
    """Stage and rows of ``latest_signal``."""
    suite: Sequence[Row] = ()
    """Result rows under disturbances of the environment."""
    anytime: Sequence[Chart] = ()
    collecting: Sequence[Chart] = ()
    value: Sequence[Chart] = ()
    value_notes: Sequence[str] = ()
    """Sentences about the figures in ``value``."""
    learning_charts: Sequence[Chart] = ()
    """Figures of the margins of preference pairs and of the advantages."""
    reward: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The audit of the run's reward model."""
    audit: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The audit of the world model, from RUN/fidelity.json."""
    audits: Sequence[Row] = ()
    """The audit of the world model in each round."""
    world: Sequence[Chart] = ()
    costs: Sequence[Row] = ()
    """The cost of each stage, as given by ``_cost``."""
    metrics: Sequence[Row] = ()
    """Rows of metrics.jsonl."""
    tree: Tree | None = None
    """The search tree that the page shows."""
    provenance: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further facts about the run and the page, such as the seed and versions."""
    config: str = ""
    """The full config, as TOML."""


def gather(run: Run, *, config: str = "", provenance: Mapping[str, str] | None = None) -> Content:
    """Gather the content of a run's page.

    Raises:
        CorruptShard, StoreError, RunError: a file is damaged.
    """
    rows, stages = run.result_rows(), run.stages()
    learned = _Collected()
    for name in run.collections():
        if SEARCHED.fullmatch(name):
            learned.read(run, name)
    signal = latest_signal(stages)
    value, value_notes = _value_charts(signal[1], learned, planned_ends(run, rows))
    audit = run.fidelity()
    return Content(
        rows=rows,
        alarms=[Alarm(name, sentence) for name, facts in stages.items() for sentence in facts.get("alarms", ())],
        cause=first_cause(stages, learned.first) if learned.first and not learned.solved else "",
        signal=signal,
        suite=run.suite_rows(),
        anytime=anytime_charts("anytime", "Success by", progress_of(run, rows), greedy_points(rows)),
        collecting=anytime_charts("collecting", "Training tasks solved by", learned.chosen()),
        value=value,
        value_notes=value_notes,
        learning_charts=learned.learning_charts(),
        reward=run.reward_audit(),
        audit=audit,
        audits=[{"stage": name} | facts for name, facts in stages.items() if re.fullmatch(r"audit-\d+", name)],
        world=_world_charts(audit),
        costs=[cost for name, facts in stages.items() if (cost := _cost(name, facts))],
        metrics=run.metrics(),
        tree=learned.example_tree(),
        config=config,
        provenance=provenance or {},
    )


def within_run_budgets(run: Run) -> Callable[[Sequence[Edge]], bool]:
    """A predicate that is true if the costs of a path are within the run's budgets (``rewards.budgets``)."""
    budgets = run.config.rewards.budgets
    return (lambda path: within_budgets(path_costs(path, budgets), budgets)) if budgets else lambda path: True


def progress_of(run: Run, rows: Sequence[Row], before: str = "") -> list[Progress]:
    """The progress of the searches of each row that has stored trees with costs. ``before`` is the prefix of labels."""
    groups: list[Progress] = []
    settings, allowed, names = run.config.evaluate, within_run_budgets(run), shard_names(run.trees)
    for row in rows:
        stage = stage_of_row(row)
        if stage in names:
            trees = _trees(run, stage)
            searches = [found for tree in trees if (found := moments(tree, settings.likelihood_weight, allowed))]
            if searches:
                decides = settings.decision == "leaf" and row["mode"] != "lookahead"
                groups.append(Progress(f"{before}{row['policy']} {row['mode']}", searches, decides))
    return groups


def greedy_points(rows: Sequence[Row], before: str = "", colour: int = 0) -> dict[str, Sequence[Line]]:
    """For each kind of cost, one point per policy that was evaluated greedily: mean cost per task and success.

    Args:
        before: prefix of the labels.
        colour: index of the first policy's colour.
    """
    greedy = [row for row in rows if row["mode"] == "greedy" and row["tasks"]]
    names = {"tokens": "generated_tokens", "steps": "environment_steps", "seconds": "seconds"}
    return {
        cost: [
            Line(
                f"{before}{row['policy']} greedy",
                [(row[names[cost]] / row["tasks"], row["success"])],
                [(row["success_low"], row["success_high"])],
                "dots",
                colour=index,
            )
            for index, row in enumerate(greedy, start=colour)
            if "success_low" in row and names[cost] in row
        ]
        for cost in COSTS
    }


def planned_ends(run: Run, rows: Sequence[Row]) -> dict[str, list[Estimated]]:
    """For each policy, V at the ends of its plans at evaluation, with the returns of these ends."""
    found: dict[str, list[Estimated]] = {}
    names = shard_names(run.trees)
    for row in rows:
        if (stage := stage_of_row(row)) in names:
            for tree in _trees(run, stage):
                found.setdefault(row["policy"], []).extend(estimated_ends(tree))
    return {policy: ends for policy, ends in found.items() if ends}


def _trees(run: Run, name: str) -> Iterator[Tree]:
    return islice(read_as(from_record, run.trees, name), MOST_TREES)


@dataclass(slots=True)
class _Collected:
    """Statistics of the collected trees: ``progress`` and ``solved`` of all collections, the others of the last one."""

    progress: list[Progress] = field(default_factory=list[Progress])
    first: list[Tree] = field(default_factory=list[Tree])
    """The first 100 trees of the last collection."""
    solved: bool = False
    """Whether a search of any collection found a success."""
    states: list[Estimated] = field(default_factory=list[Estimated])
    ends: list[Estimated] = field(default_factory=list[Estimated])
    margins: list[float] = field(default_factory=list[float])
    scores: list[float] = field(default_factory=list[float])
    name: str = ""

    def read(self, run: Run, name: str) -> None:
        for collection in (self.first, self.states, self.ends, self.margins, self.scores):
            collection.clear()
        self.name = name
        searches, update = list[Any](), run.config.update
        for tree in _trees(run, name):
            if len(self.first) < 100:
                self.first.append(tree)
            if found := moments(tree):
                searches.append(found)
            self.solved = self.solved or solved(tree)
            self.states += estimated_states(tree)
            self.ends += estimated_ends(tree)
            if update.pairs.rule == "trajectory":
                self.margins += [each[3] for each in compared_trajectories([tree], update.pairs)]
            else:
                self.margins += [each[1] for each in compared_siblings(tree, update.pairs)]
            self.scores += advantages([tree], update.advantages).values()
        if searches:
            self.progress.append(Progress(name, searches, decides=False))

    def chosen(self) -> list[Progress]:
        count = len(self.progress)
        if count <= _MOST_CURVES:
            return self.progress
        return [self.progress[round(index * (count - 1) / (_MOST_CURVES - 1))] for index in range(_MOST_CURVES)]

    def learning_charts(self) -> list[Chart]:
        charts = (
            _histogram("pair-margins", "Margins of preference pairs", "difference of Q", "pairs", self.margins),
            _histogram("advantages", "Advantages of actions", "advantage", "actions", self.scores),
        )
        return [chart for chart in charts if not chart.empty]

    def example_tree(self) -> Tree | None:
        """The tree with the greatest sum of squared deviations of Q over its visited edges, among the first trees."""

        def spread(tree: Tree) -> float:
            values = [edge.value for node in tree.nodes() for edge in node.edges if edge.visits]
            return statistics.pvariance(values) * len(values) if values else 0.0

        return max(self.first, key=spread, default=None)


def _histogram(name: str, title: str, x: str, y: str, values: Sequence[float]) -> Chart:
    low, high = min(values, default=0.0), max(values, default=0.0)
    if low == high:
        bars: Points = [(low, float(len(values)))] if values else []
    else:
        width = (high - low) / _BARS
        counts = [0] * _BARS
        for value in values:
            counts[min(int((value - low) / width), _BARS - 1)] += 1
        bars = [(float(f"{low + (index + 0.5) * width:.4g}"), float(count)) for index, count in enumerate(counts)]
    return Chart(name, f"{title} ({len(values):,})", x, y, [Line("", bars, kind="bars")])


def _value_charts(
    signal: Sequence[Row], learned: _Collected, plans: Mapping[str, Sequence[Estimated]]
) -> tuple[list[Chart], list[str]]:
    charts, value_notes = list[Chart](), list[str]()
    depths = [row for row in signal if isinstance(row["depth"], int)]

    def by_depth(key: str) -> Points:
        return [(row["depth"], row[key]) for row in depths if row[key] is not None]

    if len(by_depth("auc")) > 1:
        lines = [Line("AUC", by_depth("auc")), Line("siblings in order", by_depth("siblings"), colour=1)]
        charts.append(Chart("value-by-depth", "How well V tells, by depth", "steps from the root", "", lines))
    groups = {
        "before ends": (learned.states, "mean return found below"),
        "ends": (learned.ends, "return of the episode"),
    } | {f"plans of {policy}": (ends, "return of the episode") for policy, ends in plans.items()}
    for name, (estimates, y) in groups.items():
        bins = calibration(estimates)
        if len(bins) > 1:
            line = Line("", [(each.value, each.outcome) for each in bins], [(each.low, each.high) for each in bins])
            title = f"Calibration of V, {name}"
            charts.append(Chart(file_name("calibration", name), title, "V", y, [line], diagonal=True))
            value_notes.append(
                f"{name}: V is off by {calibration_error(bins):.2f} on average over {len(estimates):,} states "
                "(expected calibration error, in reward units)."
            )
    return charts, value_notes


def _world_charts(audit: Mapping[str, Any]) -> list[Chart]:
    rows = {int(steps): figures for steps, figures in audit.get("compounding", {}).items()}
    shares = {
        "observations alike": "observation_agreement",
        "rewards right": "reward_accuracy",
        "ends right": "termination_accuracy",
    }
    lines = [
        Line(label, [(steps, rows[steps][key]) for steps in sorted(rows)], colour=index)
        for index, (label, key) in enumerate(shares.items())
    ]
    if len(rows) < 2:
        return []
    return [Chart("world-model", "World model, imagined steps in a row", "imagined steps", "", lines, share=True)]


def _cost(name: str, facts: Mapping[str, Any]) -> Row:
    """The recorded costs of a stage; empty if it recorded none."""
    update = facts.get("update") or {}
    figures = {
        "seconds": facts.get("seconds", update.get("seconds")),
        "generated_tokens": facts.get("generated_tokens"),
        "environment_steps": facts.get("environment_steps"),
        "imagined_steps": facts.get("imagined_steps"),
        "trained_tokens": (update.get("metrics") or {}).get("num_tokens"),
        "price": facts.get("price"),
    }
    nonzero = {key: value for key, value in figures.items() if value}
    return {"stage": name} | nonzero if nonzero else {}

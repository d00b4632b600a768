"""A page that compares the results, curves and settings of runs. Results on shared test tasks are paired by task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from treeagent.config import config_difference, flat_settings
from treeagent.contrib.judging.judge import Judge
from treeagent.contrib.judging.report_ratings import Episodes, Ratings, episodes_of, rate_policies, shared_tasks
from treeagent.contrib.suite.report import difference_text
from treeagent.pipeline.folder import Run, RunError
from treeagent.pipeline.report.anytime import anytime_charts
from treeagent.pipeline.report.chart import Chart, Line, file_name
from treeagent.pipeline.report.curves import SHOWN_FIRST, series
from treeagent.pipeline.report.describe import RESULT_COLUMNS, Row, cell
from treeagent.pipeline.report.gather import greedy_points, progress_of
from treeagent.pipeline.report.html import ANYTIME_NOTE
from treeagent.pipeline.report.parts import figures, interval_bar, page, sentences, table, warnings
from treeagent.store import write_atomic
from treeagent.visible import visible

_COLUMNS = {
    "run": "run",
    "policy": "policy",
    "mode": "mode",
    "success": RESULT_COLUMNS["success"],
    "against": "against the first run",
    "same": "on same tasks",
    "reward": RESULT_COLUMNS["reward"],
    "tasks": "tasks",
    "steps": "environment steps a task",
    "tokens": "tokens a task",
    "limit": "token limit",
}
_NOTE = (
    "Against the first run: the mean difference from the same policy and mode there in points [95 % interval], "
    "over the test tasks that both runs played. It is empty where they have fewer than two in common."
)


@dataclass(frozen=True, slots=True)
class Compared:
    """A run with its results, under the name that the page shows."""

    name: str
    run: Run
    rows: Sequence[Row]


def compared(runs: Sequence[Run]) -> list[Compared]:
    """The runs with their results, each under a unique name.

    Raises:
        RunError: a run is given twice, or has no results.
    """
    paths = [run.path.resolve() for run in runs]
    for index, run in enumerate(runs):
        if paths.index(paths[index]) != index:
            raise RunError(f"{run.path} is given twice: name each run once")
    plain = [run.path.resolve().name for run in runs]
    names = plain if len(set(plain)) == len(plain) else [str(run.path) for run in runs]
    compared_runs = [Compared(name, run, run.result_rows()) for name, run in zip(names, runs, strict=True)]
    for each in compared_runs:
        if not each.rows:
            raise RunError(
                f"{each.run.path} has no results to compare: give runs of quickstart, train or eval that have ended"
            )
    return compared_runs


def write_comparison(path: Path, runs: Sequence[Run], judge: Judge | None = None) -> Ratings | None:
    """Write the page that compares runs, and its figures to the folder ``figures`` beside it.

    Returns:
        the ratings of all policies, from the judge's preferences or, without a judge, from the episodes' rewards; None
        if no task was played by all policies, or if there is only one.

    Raises:
        RunError: as for ``compared``.
        UserError: as for ``Judge.prefer``.
        CorruptShard, StoreError: a file is damaged or cannot be written.
    """
    compared_runs = compared(runs)
    # Several comparisons may be in the same folder, so the names of figures begin with that of the page.
    draw, prefix = partial(figures, path.parent, set()), file_name(path.stem) or "comparison"
    groups = [group for each in compared_runs for group in progress_of(each.run, each.rows, f"{each.name} ")]
    points = [
        greedy_points(each.rows, f"{each.name} ", len(groups) + index) for index, each in enumerate(compared_runs)
    ]
    beside = {cost: [line for lines in points for line in lines[cost]] for cost in points[0]}
    anytime = anytime_charts(prefix, "Success by", groups, beside, coverage=False)
    episodes = {(each.name, *_key(row)): episodes_of(each.run, row) for each in compared_runs for row in each.rows}
    ratings = rate_policies(episodes, judge)
    curves = _curves(compared_runs, prefix)
    alarms = [f"{each.name}, {sentence}" for each in compared_runs for sentence in each.run.alarms()]
    sections = [
        _results(compared_runs, episodes),
        "" if ratings is None else ratings.section(),
        f"<h2>What a search reaches with less</h2>{draw(anytime)}{sentences([ANYTIME_NOTE])}" if anytime else "",
        _settings(compared_runs),
        f"<h2>Training curves</h2>{draw(curves)}" if curves else "",
    ]
    before = f"<h2>Warnings</h2>{warnings(alarms)}" if alarms else ""
    title = " and ".join(each.name for each in compared_runs)
    write_atomic(path, page(f"treeagent: {title}", _headline(compared_runs), sections, before))
    return ratings


def _headline(compared_runs: Sequence[Compared]) -> str:
    best = [(each.name, max(each.rows, key=lambda row: row["success"])) for each in compared_runs]
    clauses = (f"{name} {row['policy']} with {row['mode']} {100 * row['success']:.1f} %" for name, row in best)
    return f"Best of each run: {'; '.join(clauses)}."


def _results(compared_runs: Sequence[Compared], episodes: Mapping[tuple[str, str, str], Episodes]) -> str:
    first = compared_runs[0]
    cells, bars = list[dict[str, str]](), dict[tuple[int, str], str]()
    for each in compared_runs:
        for row in each.rows:
            shown_cells = {key: cell(row, key) for key in ("policy", "mode", "success", "reward", "tasks")} | {
                "run": each.name,
                "steps": f"{row['environment_steps'] / row['tasks']:,.1f}",
                "tokens": f"{row['generated_tokens'] / row['tasks']:,.0f}",
                "limit": cell(row, "token_limit"),
            }
            ours, theirs = episodes[each.name, *_key(row)], episodes.get((first.name, *_key(row)), {})
            same = shared_tasks([ours, theirs])
            if each is not first and len(same) > 1:
                solved = ([episodes_of_run[task].solved for task in same] for episodes_of_run in (ours, theirs))
                shown_cells |= {"against": difference_text(*solved), "same": f"{len(same):,}"}
            if "success_low" in row:
                bars[len(cells), "success"] = interval_bar(row["success_low"], row["success"], row["success_high"])
            cells.append(shown_cells)
    most = max(row["success"] for each in compared_runs for row in each.rows)
    best = [
        index for index, row in enumerate(row for each in compared_runs for row in each.rows) if row["success"] == most
    ]
    shown_table = table(_COLUMNS, cells, words=("run", "policy", "mode"), best=best, marked=bars)
    return f"<h2>Results</h2>{shown_table}{sentences([_NOTE])}"


def _key(row: Row) -> tuple[str, str]:
    return row["policy"], row["mode"]


def _settings(compared_runs: Sequence[Compared]) -> str:
    """A table of the settings in which the runs differ."""
    first = compared_runs[0].run.config
    keys = sorted({key for each in compared_runs[1:] for key in config_difference(first, each.run.config)})
    flat = {each.name: flat_settings(each.run.config) for each in compared_runs}
    cells = [{"": key} | {name: _said(settings, key) for name, settings in flat.items()} for key in keys]
    html = table({"": "setting"} | {name: name for name in flat}, cells, words=("", *flat))
    return f"<h2>Settings that differ</h2>{html or sentences(['None: the runs have the same settings.'])}"


def _said(settings: Mapping[str, object], key: str) -> str:
    return str(settings[key]) if settings.get(key) is not None else "–"


def _curves(compared_runs: Sequence[Compared], prefix: str) -> list[Chart]:
    """One figure for each chief metric (``SHOWN_FIRST``) of a stage that two or more runs logged; one line per run.
    ``prefix`` begins the names of the figures."""
    found: dict[tuple[str, str], list[Line]] = {}
    for index, each in enumerate(compared_runs):
        for stage, metrics in series(each.run.metrics()).items():
            for metric, points in metrics.items():
                if metric in SHOWN_FIRST and len(points) > 1:
                    found.setdefault((stage, metric), []).append(Line(each.name, points, colour=index))
    return [
        Chart(file_name(prefix, visible(stage), visible(metric)), f"{stage}: {metric}", "step", "", lines)
        for (stage, metric), lines in found.items()
        if len(lines) > 1
    ]

"""RUN/report.html and RUN/view.html: what the pages of a run show, gathered from its folder."""

from collections.abc import Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path

from treeagent.config import RunConfig, dump_config
from treeagent.report.describe import latest_signal
from treeagent.report.html import write_report
from treeagent.report.reviews import reviews, reviews_html
from treeagent.report.viewer.collect import Collector
from treeagent.report.viewer.page import write_page
from treeagent.run.folder import Run
from treeagent.run.outcomes import Row
from treeagent.search.node import Tree
from treeagent.search.record import from_record
from treeagent.store import read_as, shards

_MOST_BYTES = 64_000_000
"""Bytes of stored trees up to which a run ends with a page of all of them: packing this many takes about two minutes
and gives a page of about 100 MB."""


def report(config: RunConfig, run: Run, rows: Sequence[Row]) -> Path:
    """RUN/report.html: the table, the curves and one tree to look at. RUN/view.html, with all trees and episodes, is
    written beside it, unless it would be large."""
    path, view = run.path / "report.html", run.path / "view.html"
    stored = sum(file.stat().st_size for folder in (run.trees, run.episodes) for file in shards(folder))
    if viewed := stored <= _MOST_BYTES:
        write_page(view, Collector().collect([run.path]))
    packages = ("treeagent", "torch", "transformers", "trl")
    write_report(
        path,
        rows=rows,
        metrics=run.metrics(),
        config=dump_config(config),
        provenance={"seed": str(config.seed), **{package: version(package) for package in packages}},
        alarms=run.alarms(),
        signal=latest_signal(run.stages()),
        tree=_telling_tree(run),
        view=view.name if viewed else "",
        reviews=reviews_html(reviews(run)),
    )
    return path


def _telling_tree(run: Run) -> Tree | None:
    """The stored training tree, of the first hundred, whose edges differ most in what they led to."""
    grown = (tree for name in run.collections() for tree in read_as(from_record, run.trees, name))
    trees = list(islice(grown, 100))

    def spread(tree: Tree) -> float:
        values = [edge.value for node in tree.nodes() for edge in node.edges if edge.visits]
        mean = sum(values) / max(len(values), 1)
        return sum((value - mean) ** 2 for value in values)

    return max(trees, key=spread, default=None)

"""RUN/report.html: what the page of a run shows, gathered from its folder."""

from collections.abc import Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path

from treeagent.config import RunConfig, dump_config
from treeagent.report.describe import latest_signal
from treeagent.report.html import write_report
from treeagent.run.folder import Run
from treeagent.run.outcomes import Row
from treeagent.search.node import Tree
from treeagent.search.record import from_record
from treeagent.store import read_as


def report(config: RunConfig, run: Run, rows: Sequence[Row]) -> Path:
    """RUN/report.html: the table, the curves and one tree to look at."""
    path = run.path / "report.html"
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

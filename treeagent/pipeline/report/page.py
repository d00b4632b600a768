"""RUN/report.html: a run's results, warnings and one search tree, in one file that loads nothing."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from treeagent.config import dump_config
from treeagent.pipeline.alarms import first_cause
from treeagent.pipeline.folder import SEARCHED, Run
from treeagent.pipeline.report import describe
from treeagent.pipeline.report.describe import Row
from treeagent.search.decide import best_path
from treeagent.search.node import Tree
from treeagent.search.record import from_record
from treeagent.store import read_as, write_atomic
from treeagent.visible import visible

_PACKAGES = ("treeagent", "torch", "transformers", "trl")
_READ_TREES = 100
"""Trees of the last collection from which the one that is shown is chosen."""
_DEEPEST = 100
"""Steps of a path of the tree that are shown."""


@dataclass(frozen=True, slots=True)
class Content:
    """What the page shows: results, (stage, warning) pairs, why nothing could be learned, a tree, settings as TOML."""

    rows: Sequence[Row] = ()
    alarms: Sequence[tuple[str, str]] = ()
    cause: str = ""
    tree: Tree | None = None
    provenance: Mapping[str, str] = field(default_factory=dict[str, str])
    config: str = ""


def report(run: Run) -> Path:
    """Write RUN/report.html. Returns its path."""
    path, stages = run.path / "report.html", run.stages()
    searched = [name for name in run.collections() if SEARCHED.fullmatch(name)]
    trees = list(islice(read_as(from_record, run.trees, searched[-1]), _READ_TREES)) if searched else []
    content = Content(
        rows=run.result_rows(),
        alarms=[(name, sentence) for name, facts in stages.items() for sentence in facts.get("alarms", ())],
        cause=first_cause(stages, trees) if trees else "",
        tree=max(trees, key=_spread, default=None),
        provenance={
            "run": run.path.name,
            "seed": str(run.config.seed),
            "page written by": ", ".join(f"{package} {version(package)}" for package in _PACKAGES),
        },
        config=dump_config(run.config),
    )
    write_atomic(path, render(content))
    return path


def render(content: Content) -> bytes:
    """The page in UTF-8. Every text in it is escaped, its invisible characters too."""
    pages = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, finalize=_shown
    )
    tree = content.tree
    chosen = {id(edge) for edge in best_path(tree, "visits")} if tree else set[int]()
    page = pages.get_template("page.html.j2").render(
        content=content, describe=describe, deepest=_DEEPEST, is_chosen=lambda edge: id(edge) in chosen
    )
    return page.encode()


def _shown(value: object) -> object:
    return visible(value, lines=True) if isinstance(value, str) and not isinstance(value, Markup) else value


def _spread(tree: Tree) -> float:
    values = [edge.value for node in tree.nodes() for edge in node.edges if edge.visits]
    return statistics.pvariance(values) * len(values) if values else 0.0

"""RUN/report.html, RUN/figures and RUN/view.html: the pages of a run."""

from importlib.metadata import version
from pathlib import Path

from treeagent.config import dump_config
from treeagent.contrib.viewer.collect import Collector
from treeagent.contrib.viewer.page import write_page
from treeagent.pipeline.folder import Run
from treeagent.pipeline.report.gather import gather
from treeagent.pipeline.report.html import write_report
from treeagent.store import shards

_MOST_BYTES = 64_000_000
"""RUN/view.html is written only if the stored trees and episodes have at most this many bytes. Packing this many takes
about two minutes and gives a page of about 100 MB."""
_PACKAGES = ("treeagent", "torch", "transformers", "trl")


def report(run: Run) -> Path:
    """Write RUN/report.html, its figures in RUN/figures and, unless it would be large, RUN/view.html.

    Returns:
        the path of RUN/report.html.

    Raises:
        CorruptShard, StoreError, RunError: a file is damaged or cannot be written.
    """
    path, view = run.path / "report.html", run.path / "view.html"
    stored = sum(file.stat().st_size for folder in (run.trees, run.episodes) for file in shards(folder))
    if stored <= _MOST_BYTES:
        write_page(view, Collector().collect([run.path]))
    written = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    content = gather(
        run,
        view=view.name if view.exists() else "",
        config=dump_config(run.config),
        provenance={"run": run.path.name, "seed": str(run.config.seed), "page written by": written},
    )
    write_report(path, content)
    return path

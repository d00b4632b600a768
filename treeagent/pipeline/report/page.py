"""RUN/report.html and RUN/figures: the report of a run."""

from importlib.metadata import version
from pathlib import Path

from treeagent.config import dump_config
from treeagent.pipeline.folder import Run
from treeagent.pipeline.report.gather import gather
from treeagent.pipeline.report.html import write_report

_PACKAGES = ("treeagent", "torch", "transformers", "trl")


def report(run: Run) -> Path:
    """Write RUN/report.html and its figures in RUN/figures.

    Returns:
        the path of RUN/report.html.

    Raises:
        CorruptShard, StoreError, RunError: a file is damaged or cannot be written.
    """
    path = run.path / "report.html"
    written = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    content = gather(
        run,
        config=dump_config(run.config),
        provenance={"run": run.path.name, "seed": str(run.config.seed), "page written by": written},
    )
    write_report(path, content)
    return path

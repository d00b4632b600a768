"""Write the viewer's page, and write it again as its runs go on."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from treeagent.report.viewer.collect import Collector
from treeagent.report.viewer.page import write_page
from treeagent.run.folder import RunError, is_being_written
from treeagent.search.node import Tree
from treeagent.store import shard_names

_EVERY = 2.0
"""Seconds between two looks at the runs."""


def write_and_follow(
    runs: Sequence[Path],
    page: Path,
    written: Callable[[Path, int, bool], None],
    *,
    names: Sequence[str] = (),
    follow: bool = False,
    measure: Callable[[Tree], None] | None = None,
) -> None:
    """Write the page of runs; with ``follow`` again after every change, until no process writes any of the runs.

    Args:
        written: called with the page, the number of trees and episodes on it and whether it is the first time.
        names: only the trees and episodes of these names; empty for all.
        measure: as of ``Collector``.

    Raises:
        RunError: a folder holds no run, or nothing of these names.
        CorruptShard: a shard cannot be read.
        StoreError: the page cannot be written.
    """
    collector, before, going, first = Collector(measure), None, True, True
    while going:
        going = follow and any(map(is_being_written, runs))  # looked up first, so that the last state is shown too
        content = collector.collect(runs, names)
        if names and not content.index["trees"]:
            known = sorted({name for run in runs for part in ("trees", "episodes") for name in shard_names(run / part)})
            raise RunError(f"no run has trees named {', '.join(names)}: there are {', '.join(known) or 'none'}")
        if (now := (content.index, content.pieces, going)) != before:
            write_page(page, content, follow=going)
            written(page, len(content.index["trees"]), first)
            before, first = now, False
        if going:
            time.sleep(_EVERY)

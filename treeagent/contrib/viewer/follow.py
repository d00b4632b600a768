"""Writes the viewer's page, and writes it again while its runs go on."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from treeagent.contrib.viewer.collect import Collector
from treeagent.contrib.viewer.page import write_page
from treeagent.pipeline.folder import RunError, is_being_written
from treeagent.store import shard_names

_EVERY = 2.0
"""Seconds between two reads of the runs."""


def write_and_follow(
    runs: Sequence[Path],
    page: Path,
    written: Callable[[Path, int, bool], None],
    *,
    names: Sequence[str] = (),
    follow: bool = False,
) -> None:
    """Write the page of runs. With ``follow``, write it again after every change until no process writes the runs.

    Args:
        written: called after each write with the page's path, the number of trees and episodes on it, and whether this
            is the first write.
        names: include only trees and episodes of these names; empty for all.

    Raises:
        RunError: a folder holds no run, or no run has trees or episodes of these names.
        CorruptShard: a shard cannot be read.
        StoreError: the page cannot be written.
    """
    collector, before, going, first = Collector(), None, True, True
    while going:
        going = follow and any(map(is_being_written, runs))  # checked before the read, so that the end is shown too
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

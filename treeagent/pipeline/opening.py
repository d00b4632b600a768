"""Open a run for writing: check what it is going to need, and let the machine choose what the settings leave open."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from treeagent.config import Method, RunConfig, load_config
from treeagent.pipeline.folder import Run
from treeagent.pipeline.machine import fit_to_machine
from treeagent.pipeline.preflight import Use, require
from treeagent.pipeline.processes import shared_workers
from treeagent.pipeline.progress import Progress, QuietProgress
from treeagent.pipeline.trackers import tracked


@contextmanager
def opened(
    config: RunConfig,
    out: str | Path,
    uses: Sequence[Use],
    *,
    methods: Sequence[Method] = (),
    checkpoint: Path | None = None,
    resume: bool = True,
    progress: Progress | None = None,
) -> Iterator[tuple[Run, Progress]]:
    """Context that yields the run in the folder ``out``, begun or continued, and its progress. Its ``config`` holds the
    settings with the machine's choices. Workers are shared by all stages within the context.

    Args:
        uses: the parts that use tasks.
        methods: the update methods that are used.
        checkpoint: the policy to start from, if any.
        resume: whether a run that is there already is continued.
        progress: by default nothing is shown.
    """
    shown, stored = progress or QuietProgress(), Path(out) / "config.toml"
    require(config, uses, methods, checkpoint)
    begun = load_config(stored) if resume and stored.is_file() else None
    config, said = fit_to_machine(config, checkpoint, begun)
    if said:
        shown.warn(said)
    with Run.create(Path(out), config, resume=resume) as run, tracked(run), shared_workers(config):
        yield run, shown

"""Put the workers and the updates of ``Scale`` in the place of those of the core, for as long as a context lasts."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from treeagent.contrib.scale.settings import Scale
from treeagent.pipeline import processes, update


@contextmanager
def installed(scale: Scale) -> Iterator[None]:
    """Context in which runs use the workers and processes that ``scale`` names.

    Raises:
        UserError: a package is missing, or updates cannot train with the file of ``accelerate config``.
    """
    before = processes.start_workers, update.train_all
    if scale.ray:
        from treeagent.contrib.scale.ray import RayWorkers

        processes.start_workers = partial(RayWorkers, scale)
    if scale.processes > 1:
        from treeagent.contrib.scale.launch import check_accelerate_config, train_together

        check_accelerate_config(scale)
        update.train_all = partial(train_together, scale)
    try:
        yield
    finally:
        processes.start_workers, update.train_all = before

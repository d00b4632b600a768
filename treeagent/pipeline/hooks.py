"""Hooks by which a stage receives the metrics and the progress of a training."""

from collections.abc import Callable
from pathlib import Path

from treeagent.learners.common import Hooks
from treeagent.pipeline.metrics import Emit, Event


def training_hooks(emit: Emit, stage: str, folder: Path, validate: Callable[[], float] | None = None) -> Hooks:
    """Hooks that send every row of metrics and every step done to ``emit`` as events of ``stage``.

    Args:
        folder: folder of the trainer's own checkpoints, from which an interrupted training resumes.
        validate: scores the model with its current weights, higher is better; None turns validation off.
    """
    return Hooks(
        on_metrics=lambda metrics: emit(Event(stage, metrics=metrics)),
        on_progress=lambda done, total: emit(Event(stage, done=done, total=total)),
        validate=validate,
        checkpoint_dir=folder,
    )

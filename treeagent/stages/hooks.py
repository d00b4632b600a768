"""What a stage observes of the trainings that it runs."""

from collections.abc import Callable
from pathlib import Path

from treeagent.learners.watch import Hooks
from treeagent.run.metrics import Emit, Event


def training_hooks(emit: Emit, stage: str, folder: Path, validate: Callable[[], float] | None = None) -> Hooks:
    """Hooks that send every row of metrics and every step done to ``emit`` as events of ``stage``.

    Args:
        folder: where the trainer keeps its checkpoints, from which an interrupted training goes on.
        validate: scores the model as it stands, higher is better; None validates nothing.
    """
    return Hooks(
        on_metrics=lambda metrics: emit(Event(stage, metrics=metrics)),
        on_progress=lambda done, total: emit(Event(stage, done=done, total=total)),
        validate=validate,
        checkpoint_dir=folder,
    )

"""Send a run's metrics to TensorBoard, trackio or wandb, besides metrics.jsonl, through accelerate's wrappers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from treeagent.config import RunConfig, Tracker
from treeagent.pipeline.folder import Run, RunError


@contextmanager
def tracked(run: Run) -> Iterator[None]:
    """Context in which the run's metrics also go to every tracker in ``config.trackers``."""
    opened, before = {name: _open(name, run) for name in run.config.trackers}, run.on_log

    def tell(stage: str, step: int, metrics: Mapping[str, float]) -> None:
        prefixed = {f"{stage}/{key}": float(value) for key, value in metrics.items()}
        for name, tracker in opened.items():
            if name == "tensorboard":
                tracker.log(prefixed, step=step)
            else:  # these trackers count steps over a whole run, but stages that run in parallel share no step
                tracker.log(prefixed | {f"{stage}/step": step})

    run.on_log = tell
    try:
        yield
    finally:
        run.on_log = before
        for tracker in opened.values():
            tracker.finish()


def require_trackers(config: RunConfig) -> None:
    """Check that the packages of all trackers are installed."""
    for name in config.trackers:
        # wandb creates a folder named "wandb", which Python takes for a package without an origin.
        if getattr(find_spec(name), "origin", None) is None:
            raise RunError(
                f"trackers names {name!r}, which is not installed: pip install 'treeagent[{name}]', or leave it out"
            )


def _open(name: Tracker, run: Run) -> Any:
    from accelerate import tracking  # imported here because it imports torch

    makers: dict[Tracker, Callable[[], Any]] = {
        "tensorboard": lambda: tracking.TensorBoardTracker("tensorboard", logging_dir=run.path),
        "trackio": lambda: tracking.TrackioTracker("treeagent", name=run.path.name),
        "wandb": lambda: tracking.WandBTracker("treeagent", name=run.path.name, dir=run.path, resume="allow"),
    }
    tracker = makers[name]()
    tracker.start()
    return tracker

"""Checkpoints of a training: which are complete, to which training they belong, and its progress."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from treeagent.store import regular, write_atomic
from treeagent.types import UserError

_SEAL = "progress.json"
_BEST = "best.safetensors"


@dataclass(slots=True)
class Progress:
    """State that a resumed training needs in addition to the trainer's own checkpoint."""

    step: int = 0
    finished: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    best_validation: float | None = None
    best_step: int | None = None
    stale: int = 0
    """Number of validations since the best one."""


def fingerprint(config: object, rows: Sequence[object]) -> str:
    """A hash of the configuration and the rows, which identifies a training."""
    digest = hashlib.sha256(repr(config).encode())
    for row in rows:
        digest.update(repr(row).encode())
    return digest.hexdigest()[:16]


def seal(folder: Path, step: int, run: str, progress: Progress, best: Mapping[str, Tensor]) -> None:
    """Mark the checkpoint that transformers wrote at ``step`` as complete, with its progress and the best weights."""
    checkpoint = folder / f"{PREFIX_CHECKPOINT_DIR}-{step}"
    if best:
        save_file(dict(best), checkpoint / _BEST)
    write_atomic(checkpoint / _SEAL, json.dumps({"run": run, "progress": asdict(progress)}).encode())


def is_begun(folder: Path) -> bool:
    """Whether a folder has a complete checkpoint, so that its training would resume."""
    return any(folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*/{_SEAL}"))


def newest(folder: Path, run: str) -> Path | None:
    """The newest complete checkpoint in a folder, if any. Incomplete checkpoints are removed.

    Raises:
        UserError: it belongs to a training with another configuration or other rows.
    """
    latest = None
    for checkpoint in sorted(folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"), key=lambda path: int(path.name.split("-")[1])):
        if (checkpoint / _SEAL).exists():
            latest = checkpoint
        else:
            shutil.rmtree(checkpoint)
    if latest is None:
        return None
    if json.loads(regular(latest / _SEAL).read_text())["run"] != run:
        raise UserError(
            f"the checkpoints in {folder} come from another configuration or other rows: "
            "give each training its own folder, or delete this one to start afresh"
        )
    return latest


def read(checkpoint: Path, device: torch.device) -> tuple[Progress, dict[str, Tensor]]:
    """The progress of a complete checkpoint, and the best weights so far (empty without a validation)."""
    progress = Progress(**json.loads(regular(checkpoint / _SEAL).read_text())["progress"])
    best = checkpoint / _BEST
    return progress, load_file(best, device=str(device)) if best.exists() else {}

"""The marks that a training learns from, if reviewers give more of them while it is interrupted."""

from collections.abc import Sequence
from pathlib import Path

from treeagent.contrib.people.marks import Mark
from treeagent.learners.checkpoints import is_begun
from treeagent.store import regular, write_atomic

_FILE = "marks"
"""The file in the folder of a training's checkpoints that holds the number of its marks."""


def first_marks(folder: Path, marks: Sequence[Mark]) -> Sequence[Mark]:
    """Those of ``marks`` that existed when the training with checkpoints in ``folder`` began; all of them if it has not
    begun. Later ones would change the rows of a training that resumes. Marks are only ever appended, so their number
    identifies them."""
    counted = folder / _FILE
    return marks[: int(regular(counted).read_text())] if is_begun(folder) and counted.exists() else marks


def record_marks(folder: Path, marks: Sequence[Mark]) -> None:
    """Store how many marks the training learns from. It must be called before the training begins."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / _FILE, str(len(marks)).encode())

"""Environments that are not part of the core."""

import importlib
from collections.abc import Sequence
from typing import Any

from treeagent.types import SPLITS, Split, Task, UserError


def required(package: str, extra: str = "") -> Any:
    """Import a package that an extra installs, by default the extra of the same name."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"{package} is missing ({error}): pip install 'treeagent[{extra or package}]'") from error


def seeded_tasks(name: str, prompt: str, split: Split, count: int, start: int) -> Sequence[Task]:
    """Return tasks that differ only in their seed. Each of the three splits has every third seed."""
    first = SPLITS.index(split)
    return [Task(f"{name}-{split}-{index}", prompt, split, 3 * index + first) for index in range(start, start + count)]

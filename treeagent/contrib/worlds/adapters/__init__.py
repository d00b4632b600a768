"""Adapters that turn environments and tools of other projects into an ``Env``."""

import importlib
from collections.abc import Sequence
from typing import Any

from treeagent.types import SPLITS, Split, Task, UserError

PACKAGES = {"planning": "unified_planning"}
"""Name of the package that an extra installs, if it differs from the extra's name."""


def required(extra: str) -> Any:
    """Import the package that an extra installs.

    Raises:
        UserError: it is not installed.
    """
    package = PACKAGES.get(extra, extra)
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"{package} is missing ({error}): pip install 'treeagent[{extra}]'") from error


def seeded_tasks(name: str, prompt: str, split: Split, count: int, start: int) -> Sequence[Task]:
    """Return tasks that differ only in their seed. Each of the three splits has every third seed."""
    first = SPLITS.index(split)
    return [Task(f"{name}-{split}-{index}", prompt, split, 3 * index + first) for index in range(start, start + count)]

"""Environments and tools that others wrote, behind our contract."""

import importlib
from collections.abc import Sequence
from typing import Any

from treeagent.types import SPLITS, Split, Task, UserError

PACKAGES = {"planning": "unified_planning"}
"""The package that an extra brings, where their names differ."""


def required(extra: str) -> Any:
    """The package that an extra brings.

    Raises:
        UserError: it is not installed.
    """
    package = PACKAGES.get(extra, extra)
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"{package} is missing ({error}): pip install 'treeagent[{extra}]'") from error


def seeded_tasks(name: str, prompt: str, split: Split, count: int, start: int) -> Sequence[Task]:
    """Tasks that differ by their seed alone. Train has every third seed, and so have validation and test."""
    first = SPLITS.index(split)
    return [Task(f"{name}-{split}-{index}", prompt, split, 3 * index + first) for index in range(start, start + count)]

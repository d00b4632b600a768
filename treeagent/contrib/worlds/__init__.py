"""Environments that are not part of the core."""

import importlib
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import count as numbers
from typing import Any, TypeVar

from treeagent.envs.calls import as_call
from treeagent.envs.visit import Key, ToolEnv, Visit
from treeagent.types import SPLITS, Split, Task, ToolCall, UserError

Kind = TypeVar("Kind")


def required(package: str, extra: str = "") -> Any:
    """Import a package that an extra installs, by default the extra of the same name."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(f"{package} is missing ({error}): pip install 'treeagent[{extra or package}]'") from error


def some(tasks: Sequence[Kind], split: Split, count: int, start: int, name: str) -> Sequence[Kind]:
    """The tasks from ``start`` up to ``start + count`` of those of a split; raises ``UserError`` if it has fewer."""
    if start + count > len(tasks):
        raise UserError(f"{split} of {name} has {len(tasks)} tasks, not {start + count}: ask for fewer")
    return tasks[start : start + count]


def seeded_tasks(name: str, prompt: str, split: Split, count: int, start: int) -> Sequence[Task]:
    """Return tasks that differ only in their seed. Each of the three splits has every third seed."""
    first = SPLITS.index(split)
    return [Task(f"{name}-{split}-{index}", prompt, split, 3 * index + first) for index in range(start, start + count)]


class CommandEnv(ToolEnv[Key, Visit]):
    """An environment of one tool that takes a text, which alone makes a call, too."""

    def read(self, action: str | ToolCall) -> ToolCall:
        return super().read(as_call(action, self.tools()))


_MISSES = 5000
"""Consecutive draws without a new task after which a split counts as exhausted."""


class DrawnTasks:
    """Tasks that ``draw(seed)`` generates as rows of text. ``Task.data`` holds the rows under ``key``. A hash of the
    rows decides the split, so no two splits share a task."""

    def __init__(
        self, name: str, prompt: Callable[[Sequence[str]], str], key: str, draw: Callable[[int], Sequence[str]]
    ) -> None:
        self._name, self._prompt, self._key, self._draw = name, prompt, key, draw
        self._tasks: dict[Split, list[Task]] = {split: [] for split in SPLITS}
        self._seen, self._seeds = set[str](), numbers()

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        """Return tasks as ``Env.tasks`` does; raise ``UserError`` if the split seems to have fewer."""
        found, end, misses = self._tasks[split], start + count, 0
        while len(found) < end:
            rows = list(self._draw(seed := next(self._seeds)))
            text = "/".join(rows)
            drawn = SPLITS[blake2b(text.encode(), digest_size=8).digest()[0] % len(SPLITS)]
            misses = 0 if drawn == split and text not in self._seen else misses + 1
            if misses > _MISSES:
                raise UserError(f"{split} has about {len(found)} {self._name} tasks, not {end}: raise option size")
            if text not in self._seen:
                self._seen.add(text)
                name = f"{self._name}-{drawn}-{len(self._tasks[drawn])}"
                self._tasks[drawn].append(Task(name, self._prompt(rows), drawn, seed, {self._key: rows}))
        return found[start:end]

"""Task sets of other people, each an environment: what their adapters share."""

import importlib
import importlib.metadata
import json
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, ClassVar, Generic, TypeVar

from pydantic.dataclasses import dataclass

from treeagent.contrib.worlds import some
from treeagent.envs.base import ToolSpec, probability, task_to_play
from treeagent.envs.visit import ToolEnv
from treeagent.types import Split, Task, ToolCall, UserError

Visit = TypeVar("Visit")


@dataclass(frozen=True)
class Item:
    """The answer key in ``Task.data``: an id, by which the adapter finds the rest in its package."""

    item: str


class TaskSetEnv(ToolEnv[Item, Visit], Generic[Visit]):
    """An environment of a package's tasks. A step works on a copy of the state, so the visit itself is the snapshot.

    Write ``items``, ``specs``, ``start``, ``prompt`` and ``plan`` besides what ``ToolEnv`` wants."""

    key_type = Item
    name: str
    items: Mapping[str, Split]
    """The ids of all tasks, each with its split."""
    specs: Sequence[ToolSpec]
    """The tools."""
    idle: ClassVar[str]
    """The call of an agent that does nothing, which ends the task if it is repeated."""

    @abstractmethod
    def start(self, item: str) -> tuple[Visit, str]:
        """The visit at the start of a task, and the first observation."""

    @abstractmethod
    def prompt(self, item: str) -> str:
        """What the agent is asked to do."""

    @abstractmethod
    def plan(self) -> Sequence[str]:
        """The calls of the set's own solution that are still to be made, as texts; the last one ends the task."""

    def tools(self) -> Sequence[ToolSpec]:
        return self.specs

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        found = [item for item, its in self.items.items() if its == split]
        return [
            Task(f"{self.name}-{item}", self.prompt(item), split, 0, {"item": item})
            for item in some(found, split, count, start, self.name)
        ]

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        task = task_to_play(self, seed, options)
        item = self.key_of(task).item
        if item not in self.items:
            raise UserError(f"task {task.id!r} is none of {self.name}: take tasks from {type(self).__name__}.tasks")
        visit, observation = self.start(item)
        self._at = task, visit
        return observation, {}

    def slips(self) -> Sequence[str]:
        """Wrong calls for a demonstrator that errs."""
        return [*self.plan()[1:], *(f"{tool.name} {{}}" for tool in self.tools())]

    def demonstrator(self, noise: float) -> "Gold":
        return Gold(self.plan, self.slips, noise)


class Gold:
    """Makes the first call of what the set's own solution still has to do. With probability ``noise`` it makes a wrong
    one."""

    def __init__(self, plan: Callable[[], Sequence[str]], slips: Callable[[], Sequence[str]], noise: float) -> None:
        self._plan, self._slips, self._noise = plan, slips, probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        call = self._plan()[0]
        if rng.random() < self._noise:
            call = rng.choice([each for each in self._slips() if each != call] or [call])
        return f"next is {call.split(' ')[0].split('[')[0]}", call


def written(call: ToolCall) -> str:
    """A call as a text of an agent."""
    return f"{call.name} {json.dumps(dict(call.arguments), default=str)}"


def still_due(solution: Iterable[ToolCall], made: Iterable[ToolCall]) -> list[str]:
    """The calls of a solution that are not made yet, as texts. What it calls twice is due twice."""
    left, counts = list[str](), Counter(map(written, made))
    for text in map(written, solution):
        counts[text] -= 1
        if counts[text] < 0:
            left.append(text)
    return left


def package(module: str, distribution: str, version: str, install: str) -> Any:
    """Import a module of a package whose version must begin with ``version``: other versions hold other tasks."""
    try:
        found = importlib.metadata.version(distribution)
        if f"{found}.".startswith(f"{version}."):
            return importlib.import_module(module)
        why = f"version {found} is installed"
    except ImportError as error:
        why = str(error)
    raise UserError(f"{distribution} {version} is needed ({why}): pip install {install}")


def split_of(item: str) -> Split:
    """A split for an id: half of all ids are for training, a quarter each for validation and test."""
    splits: Sequence[Split] = ("train", "train", "validation", "test")
    return splits[blake2b(item.encode(), digest_size=8).digest()[0] % 4]

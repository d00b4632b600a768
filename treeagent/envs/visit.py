"""Base classes for environments that hold an episode in one frozen value, and randomly generated tasks."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import count as numbers
from typing import ClassVar, Generic, TypeVar, cast

from pydantic import TypeAdapter

from treeagent.envs.base import Env, SnapshotKind, StepResult, task_data, task_to_play
from treeagent.envs.calls import read_call
from treeagent.types import SPLITS, Split, Task, ToolCall, UserError

Key = TypeVar("Key")
Visit = TypeVar("Visit")


class CallRefused(Exception):
    """Raised if a call is impossible. Its message becomes the observation that tells the agent why."""


class VisitEnv(Env, Generic[Visit]):
    """An environment whose episode state is ``_at``: its task and one frozen value, the visit."""

    snapshot_kind: SnapshotKind = "exact"
    stochastic = False
    _at: tuple[Task, Visit] | None = None

    @property
    def task(self) -> Task:
        return self.snapshot()[0]

    @property
    def visit(self) -> Visit:
        """The state of the episode."""
        return self.snapshot()[1]

    @visit.setter
    def visit(self, visit: Visit) -> None:
        self._at = self.task, visit

    def snapshot(self) -> tuple[Task, Visit]:
        if self._at is None:
            raise ValueError("no episode has begun: call reset first")
        return self._at

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        self._at = cast(tuple[Task, Visit], snapshot)


class ToolEnv(VisitEnv[Visit], Generic[Key, Visit]):
    """An environment of tools whose tasks hold an answer key. Write ``tools``, ``tasks``, ``act`` and ``verdict``."""

    key_type: type[Key]
    """Dataclass of the answer key, which ``Task.data`` holds."""
    visit_type: ClassVar[type]
    """The class of the visit. One built from its defaults is the start of an episode."""
    opening: str
    """The first observation."""

    @abstractmethod
    def act(self, call: ToolCall) -> str:
        """Execute a call: set ``visit`` and return the observation."""

    @abstractmethod
    def verdict(self) -> float | None:
        """Return the reward of an episode that has ended, in [0, 1]; ``None`` while it is running."""

    @property
    def key(self) -> Key:
        """The answer key of the current task. For verifiers and demonstrators only."""
        return self.key_of(self.task)

    def key_of(self, task: Task) -> Key:
        """Return the answer key in ``task.data``."""
        return task_data(task, self._key_form, self.key_type.__name__.lower(), type(self).__name__)

    @cached_property
    def _key_form(self) -> TypeAdapter[Key]:
        return TypeAdapter(self.key_type)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        task = task_to_play(self, seed, options)
        self.key_of(task)
        self._at = task, self.visit_type()
        return self.opening, {}

    def read(self, action: str | ToolCall) -> ToolCall:
        call = read_call(action, self.tools())
        if isinstance(call, str):
            raise CallRefused(call)
        return call

    def step(self, action: str | ToolCall) -> StepResult:
        """Take one action. The reward is the verdict at the end of the episode and 0 before."""
        over = self.verdict() is not None
        try:
            if over:
                raise CallRefused("the episode is over")
            observation = self.act(self.read(action))
        except CallRefused as why:
            return str(why), 0.0, over, False, {"tool_error": str(why)}
        verdict = self.verdict()
        return observation, verdict or 0.0, verdict is not None, False, {}

    def verify(self) -> float:
        return self.verdict() or 0.0


_MISSES = 5000
"""Consecutive draws without a new task after which a split counts as exhausted."""


class DrawnTasks:
    """Tasks that ``draw(seed)`` generates as rows of text. ``Task.data`` holds the rows under ``key``. A hash of the
    rows decides the split, so no two splits share a task. The prompt can depend on the rows."""

    def __init__(
        self, name: str, prompt: str | Callable[[Sequence[str]], str], key: str, draw: Callable[[int], Sequence[str]]
    ) -> None:
        self._name, self._prompt, self._key, self._draw = name, prompt, key, draw
        self._tasks: dict[Split, list[Task]] = {split: [] for split in SPLITS}
        self._seen, self._seeds = set[str](), numbers()

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        """Return tasks as ``Env.tasks`` does; raise ``UserError`` if the split seems to have fewer."""
        found, end, misses = self._tasks[split], start + count, 0
        while len(found) < end:
            seed = next(self._seeds)
            rows = list(self._draw(seed))
            text = "/".join(rows)
            drawn_split = SPLITS[blake2b(text.encode(), digest_size=8).digest()[0] % len(SPLITS)]
            misses = 0 if drawn_split == split and text not in self._seen else misses + 1
            if misses > _MISSES:
                raise UserError(f"{split} has about {len(found)} {self._name} tasks, not {end}: raise option size")
            if text not in self._seen:
                self._seen.add(text)
                known = self._tasks[drawn_split]
                prompt = self._prompt if isinstance(self._prompt, str) else self._prompt(rows)
                name = f"{self._name}-{drawn_split}-{len(known)}"
                known.append(Task(name, prompt, drawn_split, seed, {self._key: rows}))
        return found[start:end]

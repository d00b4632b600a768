"""Base classes for environments that hold an episode in one frozen value."""

from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar, Generic, TypeVar, cast

from pydantic import TypeAdapter

from treeagent.envs.base import Env, SnapshotKind, StepResult, task_data, task_to_play
from treeagent.envs.calls import read_call
from treeagent.types import Task, ToolCall

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

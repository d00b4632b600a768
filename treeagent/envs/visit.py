"""Environments whose episode is one frozen value: snapshots are exact and cost nothing."""

from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar, Generic, TypeVar, cast

from pydantic import TypeAdapter

from treeagent.envs.base import Env, SnapshotKind, StepResult, task_data, task_to_play
from treeagent.envs.calls import read_call
from treeagent.types import Task, ToolCall, UserError

Key = TypeVar("Key")
Visit = TypeVar("Visit")


class CallRefused(Exception):
    """Why a call is not carried out, in words for the agent."""


class VisitEnv(Env, Generic[Visit]):
    """An environment that keeps all it remembers of an episode in its task and one frozen value, the visit.

    ``reset`` sets ``_at``; ``step`` sets ``visit``.
    """

    snapshot_kind: SnapshotKind = "exact"
    stochastic = False
    visit_type: ClassVar[type]
    """The class of the visit."""
    _at: tuple[Task, Visit] | None = None

    @property
    def task(self) -> Task:
        return self.snapshot()[0]

    @property
    def visit(self) -> Visit:
        """All that the episode remembers."""
        return self.snapshot()[1]

    @visit.setter
    def visit(self, visit: Visit) -> None:
        self._at = self.task, visit

    def snapshot(self) -> tuple[Task, Visit]:
        if self._at is None:
            raise ValueError("no episode has begun: call reset first")
        return self._at

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        match snapshot:
            case (Task() as task, visit) if isinstance(visit, self.visit_type):
                self._at = task, cast(Visit, visit)
            case _:
                raise UserError(
                    f"a {type(snapshot).__name__} is no snapshot of {type(self).__name__}: restore what snapshot() gave"
                )


class ToolEnv(VisitEnv[Visit], Generic[Key, Visit]):
    """A visit that goes on by calls of tools, and whose task holds an answer key.

    Besides ``tools`` and ``tasks``, a subclass writes ``act`` and ``verdict``. The visit's defaults are the start of an
    episode.
    """

    key_type: type[Key]
    """A dataclass of what ``Task.data`` holds: the answer key."""
    opening: str
    """The first observation."""

    @abstractmethod
    def act(self, call: ToolCall) -> str:
        """Carry out a call: set ``visit`` and return the observation.

        Raises:
            CallRefused: it is not possible.
        """

    @abstractmethod
    def verdict(self) -> float | None:
        """The reward of a visit that has ended, in [0, 1]; ``None`` where it goes on."""

    @property
    def key(self) -> Key:
        """The current task's answer key. For verifiers and demonstrators only."""
        return self.key_of(self.task)

    def key_of(self, task: Task) -> Key:
        """The answer key in ``task.data``.

        Raises:
            UserError: it holds none.
        """
        return task_data(task, self._key_form, self.key_type.__name__.lower(), type(self).__name__)

    @cached_property
    def _key_form(self) -> TypeAdapter[Key]:
        return TypeAdapter(self.key_type)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        """Start ``options["task"]``, or training task number ``seed``."""
        task = task_to_play(self, seed, options)
        self.key_of(task)
        self._at = task, self.visit_type()
        return self.opening, {}

    def read(self, action: str | ToolCall) -> ToolCall:
        """The call that an action makes.

        Raises:
            CallRefused: it makes none that fits the tools.
        """
        call = read_call(action, self.tools())
        if isinstance(call, str):
            raise CallRefused(call)
        return call

    def step(self, action: str | ToolCall) -> StepResult:
        """Reward is the verdict at the end and 0 before."""
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

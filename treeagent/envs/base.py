"""What an environment is: Gymnasium's signature with text or tool actions, optional capabilities, and forks."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from treeagent.types import Origin, Split, Task, ToolCall, UserError

SnapshotKind = Literal["exact", "replay", "none"]
Data = TypeVar("Data")
StepResult = tuple[str, float, bool, bool, dict[str, object]]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool, as OpenAI's function calling and MCP describe it."""

    name: str
    description: str
    parameters: Mapping[str, object]
    """JSON schema of the arguments object."""
    read_only: bool = False
    """Calling it changes nothing outside the conversation (MCP's readOnlyHint)."""


class Demonstrator(Protocol):
    """A scripted player for warm-start data. It may read the environment's hidden state."""

    def act(self, rng: random.Random) -> tuple[str, str]:
        """(thought, call text) for the environment's current state."""
        ...


class Env(Protocol):
    """A tool environment. Subclass it to inherit the defaults of the optional members, or match it by shape."""

    snapshot_kind: SnapshotKind = "replay"
    """``exact``: ``snapshot`` and ``restore`` work; ``replay``: a reset and the same actions lead back to the same
    place; ``none``: neither."""
    stochastic: bool = False
    """Equal actions from equal places may lead to different observations."""
    snapshot_portable: bool = True
    """A pickled snapshot can be restored on another instance, in another process, before any reset; False where it is
    a handle into this one."""
    origin: Origin = "real"
    """"imagined": a world model answers, and its steps are counted and kept as such."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        """Start the episode of ``options["task"]``, a ``Task``. Returns (observation, info)."""
        ...

    def step(self, action: str | ToolCall) -> StepResult:
        """(observation, reward, terminated, truncated, info).

        A call that cannot be made is an observation with the reason in ``info["tool_error"]``, never an exception.
        ``info["process_reward"]`` may hold a number beside the outcome, such as a milestone's. It is never shown to the
        agent, and withheld at evaluation like every reward.

        Raises:
            Unanswered: nobody can tell what follows.
        """
        ...

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        """Tasks ``start`` to ``start + count`` of a split: always the same ones; splits are disjoint.

        Raises:
            ValueError: the split holds fewer.
        """
        ...

    def variations(self, task: Task, rng: random.Random) -> Sequence[Task]:
        """Harder tasks of the same kind, of the split of ``task``: solvable, apart from every other split, each with an
        id of its own. None where the environment has none."""
        return ()

    def tools(self) -> Sequence[ToolSpec]:
        """The tools that a ``ToolCall`` can name; empty where actions are free text."""
        return ()

    def legal_actions(self) -> list[str] | None:
        """Every action text possible now; ``None`` for an open vocabulary."""
        return None

    def verify(self) -> float | None:
        """The verifier's word on the episode so far, apart from shaped reward; 1 is success. ``None``: no verifier."""
        return None

    def snapshot(self) -> object:
        """A value that ``restore`` takes back, on this instance, any number of times. Needed where ``exact``."""
        raise RuntimeError(f"{type(self).__name__} has no snapshots: its snapshot_kind must not be 'exact'")

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        """Stand where ``snapshot`` was taken. ``reseed`` replaces the random state; ``None`` restores that too."""
        raise RuntimeError(f"{type(self).__name__} has no snapshots: its snapshot_kind must not be 'exact'")

    def state_key(self) -> str | None:
        """Equal keys mean equal futures; ``None`` where nobody can tell."""
        return None

    def demonstrator(self, noise: float) -> Demonstrator | None:
        """A player that errs at each decision with probability ``noise`` in [0, 1]; ``None`` where there is none."""
        return None

    def close(self) -> None:
        """Free what the environment holds."""
        return None


def task_to_play(env: Env, seed: int | None, options: Mapping[str, object] | None) -> Task:
    """For an environment's ``reset``: ``options["task"]``, or its training task number ``seed``.

    Raises:
        UserError: ``options["task"]`` is no task.
    """
    task = (options or {}).get("task")
    if task is None:
        task = env.tasks("train", 1, start=seed or 0)[0]
    if not isinstance(task, Task):
        raise UserError(f"options['task'] is a {type(task).__name__}: give a Task of {type(env).__name__}.tasks")
    return task


def probability(noise: float) -> float:
    """``noise``, for a demonstrator to keep.

    Raises:
        UserError: it is not between 0 and 1.
    """
    if not 0.0 <= noise <= 1.0:
        raise UserError(f"noise is {noise}: give a probability between 0 and 1")
    return noise


def task_data(task: Task, form: TypeAdapter[Data], kind: str, env: str) -> Data:
    """What ``task.data`` holds, a ``kind`` of thing of the environment named ``env``.

    Raises:
        UserError: it holds none.
    """
    try:
        return form.validate_python(dict(task.data))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"task {task.id!r} holds no {kind} ({where}: {first['msg']}): take tasks from {env}.tasks"
        ) from error


class EnvBroken(RuntimeError):
    """The environment answered what the contract has no place for."""


class SnapshotLost(RuntimeError):
    """The snapshot was a handle into a process that has ended, or is of another environment."""

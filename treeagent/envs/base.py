"""The contract of an environment: Gymnasium's ``reset`` and ``step`` for text or tool calls, and what is optional.

To write an environment, read this file alone.
"""

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
    answers: bool = False
    """Calling it hands in the answer and ends the episode, while other calls find it out."""


class Demonstrator(Protocol):
    """A scripted player, whose episodes a warm start imitates. It may read the environment's hidden state."""

    def act(self, rng: random.Random) -> tuple[str, str]:
        """The next turn in the environment's current state: (thought, call).

        The call is a text such as ``search[red lamp]`` or ``add {"x": 1, "y": 2}``; ``envs/calls.py`` documents how a
        text names a tool. All chance comes from ``rng``.
        """
        ...


class Env(Protocol):
    """An environment that an agent acts in by text or by calling tools.

    Subclass it and write ``reset``, ``step`` and ``tasks``. All other members have a default, which says that the
    environment lacks the capability. ``treeagent envs check module:Class`` checks that the rules below are kept.
    """

    snapshot_kind: SnapshotKind = "replay"
    """How search goes back to an earlier place. "exact": ``snapshot`` and ``restore`` work. "replay": a reset with the
    same seed and the same actions lead to the same place. "none": neither works, and only a world model can be
    searched."""
    stochastic: bool = False
    """Whether equal actions from equal places may lead to different observations."""
    snapshot_portable: bool = True
    """Whether a pickled snapshot can be restored on another instance, in another process, before any reset. False where
    a snapshot is a handle into this instance."""
    only_success_ends: bool = False
    """Whether a success is the only way to end an episode, so that every failure runs on to a limit. There an end
    betrays a success to a search from which rewards are withheld: its results are pass@N, and say so."""
    components: tuple[str, ...] = ()
    """Names of the components that ``step`` may give in ``info["components"]``."""
    origin: Origin = "real"
    """"imagined" where a world model answers. Its steps are counted and stored apart from real ones."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        """Start the episode of ``options["task"]``, a ``Task``; ``task_to_play`` reads it.

        Args:
            seed: seeds all chance of the episode. Equal tasks and seeds give equal episodes.

        Returns:
            (observation, info). The observation is text for the agent; it must not contain the answer. ``info`` may be
            empty.
        """
        ...

    def step(self, action: str | ToolCall) -> StepResult:
        """Take one action.

        Args:
            action: where ``tools`` offers any, a ``ToolCall`` in every policy format. Its arguments may not fit the
                tool's schema: ``calls.read_call`` checks them. A text comes where there are no tools, or where the
                agent's text names none of them or has arguments that cannot be read. If the only tool takes one text,
                a text that names none comes as its argument. Where a model calls a tool that does not exist, a
                ``ToolCall`` comes in either case; it is not possible.

        Returns:
            (observation, reward, terminated, truncated, info). ``terminated`` means that the task is over,
            ``truncated`` that a limit of the environment's own was hit.

            An action that is not possible is no exception: the observation says why, and ``info["tool_error"]`` holds
            the reason, a text that is not empty.

            ``info["process_reward"]`` may hold a number beside the outcome, such as a milestone's. The agent never sees
            it, and evaluation withholds it as it does every reward.

            ``info["components"]`` may hold parts of the reward and costs of this step, as numbers by their names, each
            one of ``components``. The settings ``[rewards]`` say what each of them weighs; a name that is absent pays
            nothing at this step.

        Raises:
            Unanswered: the environment cannot answer this action, as where a world model's answer cannot be read. The
                step becomes a dead end of unknown worth.
        """
        ...

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        """Tasks ``start`` to ``start + count`` of a split, the same ones at every call. No task is in two splits.

        Raises:
            ValueError: the split holds fewer tasks.
        """
        ...

    def variations(self, task: Task, rng: random.Random) -> Sequence[Task]:
        """Harder tasks of the kind of ``task``, in its split: solvable, in no other split, each with its own id. Empty
        where the environment makes none."""
        return ()

    def tools(self) -> Sequence[ToolSpec]:
        """The tools that a ``ToolCall`` can name, the same ones in every episode; empty where actions are free text."""
        return ()

    def legal_actions(self) -> list[str] | None:
        """Every action that is possible now, as texts that ``step`` takes; ``None`` where they cannot be listed. The
        policy may choose among them alone (``policy.actions``), so no useful one may be missing, and before the episode
        ends there must be one."""
        return None

    def verify(self) -> float | None:
        """The verdict on the episode so far, apart from shaped rewards; 1 is success. It is the reward that search and
        evaluation use. ``None`` where there is no verifier: the rewards of ``step`` count instead."""
        return None

    def reference(self) -> Sequence[str | ToolCall] | None:
        """The calls that are right now, each as good as the others, for ``rewards.tools``. It may read the answer: no
        agent sees it. ``None`` where none is known: the demonstrator's next call is then the reference."""
        return None

    def snapshot(self) -> object:
        """The current place, as a value that ``restore`` takes any number of times. Needed where ``snapshot_kind`` is
        "exact"."""
        raise RuntimeError(f"{type(self).__name__} has no snapshots: its snapshot_kind must not be 'exact'")

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        """Go back to the place where ``snapshot`` was taken.

        Args:
            reseed: seed of the chance from here on. ``None`` restores the state of the random generator, too.

        Raises:
            SnapshotLost: the snapshot was a handle into a process that has ended, or is of another environment.
        """
        raise RuntimeError(f"{type(self).__name__} has no snapshots: its snapshot_kind must not be 'exact'")

    def state_key(self) -> str | None:
        """A text that is equal for two places only if their futures are equal; ``None`` where that is unknown. Search
        can merge places of equal keys."""
        return None

    def demonstrator(self, noise: float) -> Demonstrator | None:
        """A player that errs at each decision with probability ``noise`` in [0, 1]; ``None`` where there is none."""
        return None

    def close(self) -> None:
        """Free the processes, files and connections that the environment holds."""
        return None

    def interrupt(self) -> None:
        """Have the call that runs in another thread end soon, by any error, if that is possible. Nothing but ``close``
        is called afterwards, once that call has returned."""
        return None


def task_to_play(env: Env, seed: int | None, options: Mapping[str, object] | None) -> Task:
    """The task that ``reset`` is to start: ``options["task"]``, or else training task number ``seed``.

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
    """``task.data`` read as ``form``. The error names the ``kind`` of data and the environment ``env``.

    Raises:
        UserError: the data does not have that form.
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
    """The environment returned a value that the contract does not allow."""


class SnapshotLost(RuntimeError):
    """The snapshot was a handle into a process that has ended, or is of another environment."""

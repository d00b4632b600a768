"""The contract of an environment: Gymnasium's ``reset`` and ``step`` for text or tool calls, and optional methods.

This file is all you need to read to write an environment.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from treeagent.types import Split, Task, ToolCall, UserError

SnapshotKind = Literal["exact", "replay", "none"]
Data = TypeVar("Data")
StepResult = tuple[str, float, bool, bool, dict[str, object]]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool, described as in OpenAI's function calling and in MCP."""

    name: str
    description: str
    parameters: Mapping[str, object]
    """JSON schema of the arguments object."""
    read_only: bool = False
    """A call changes nothing outside the conversation (MCP's readOnlyHint)."""
    answers: bool = False
    """A call submits the final answer and ends the episode."""


class Demonstrator(Protocol):
    """A scripted player. A warm start imitates its episodes. It may read the environment's hidden state."""

    def act(self, rng: random.Random) -> tuple[str, str]:
        """Return the next turn in the environment's current state: (thought, call). The call is a text such as
        ``search[red lamp]`` (``envs/calls.py``). Every random choice must come from ``rng``."""
        ...


class Env(Protocol):
    """An environment that an agent acts in by text or by calling tools. Subclass it and write ``reset``, ``step`` and
    ``tasks``; the other members add capabilities. ``treeagent envs check module:Class`` checks the rules below."""

    snapshot_kind: SnapshotKind = "replay"
    """How search returns to an earlier state. "exact": by ``snapshot`` and ``restore``. "replay": by a reset with the
    same seed and the same actions, which must lead to the same state. "none": neither works, so search needs a world
    model."""
    stochastic: bool = False
    """Whether the same action in the same state may lead to different observations."""
    only_success_ends: bool = False
    """Whether every failure runs on to a limit. The end of an episode then reveals success even to a search that sees
    no rewards, so results are labelled as pass@N."""
    extra: ClassVar[str] = ""
    """The extra of this package that the environment needs, if any."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        """Start an episode of ``options["task"]``, a ``Task``; ``task_to_play`` reads it. The same task and ``seed``
        give the same episode. Returns (observation, info); the observation is text and must not contain the answer."""
        ...

    def step(self, action: str | ToolCall) -> StepResult:
        """Take one action: a ``ToolCall`` if the environment has ``tools`` and the agent's text names one (or the only
        one takes one text), otherwise the text. ``calls.read_call`` checks name and arguments.

        Returns (observation, reward, terminated, truncated, info). ``terminated`` means that the task is over,
        ``truncated`` that the episode hit one of the environment's own limits. An impossible action, or a ``ToolCall``
        of a tool that does not exist, raises nothing: the observation says why, and ``info["tool_error"]`` holds the
        reason as a non-empty text. ``info["images"]``, also of ``reset``, lists images that belong to the observation,
        as data URLs (``data:image/png;base64,...``), for a multimodal model. ``rewards.function`` gets all of ``info``;
        the agent sees nothing else of it.
        """
        ...

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        """Return the tasks from ``start`` up to, but not including, ``start + count`` of a split, always the same ones.
        No task may be in two splits. Raises ``ValueError`` if the split has fewer tasks."""
        ...

    def tools(self) -> Sequence[ToolSpec]:
        """Return the tools that a ``ToolCall`` can name, the same in every episode; empty if actions are free text."""
        return ()

    def legal_actions(self) -> list[str] | None:
        """Return every action that is possible now, as texts for ``step``, which ``policy.actions`` may restrict the
        policy to; ``None`` if they cannot be listed. The list must not be empty before the episode ends."""
        return None

    def verify(self) -> float | None:
        """Return the verdict on the episode so far, without shaped rewards; 1 is success. Search and evaluation use it
        as the reward. ``None`` means that there is no verifier: they then use the rewards of ``step``."""
        return None

    def snapshot(self) -> object:
        """Return the current state as a value that can be pickled, and that ``restore`` of any instance accepts any
        number of times, in another process too. Required if ``snapshot_kind`` is "exact"."""
        raise RuntimeError(f"{type(self).__name__} has no snapshots: its snapshot_kind must not be 'exact'")

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        """Return to the state in which ``snapshot`` was taken. ``reseed`` is the seed of all random choices from here
        on; ``None`` restores the state of the random generator, too."""
        raise RuntimeError(f"{type(self).__name__} has no snapshots: its snapshot_kind must not be 'exact'")

    def state_key(self) -> str | None:
        """Return a key of the current state, for ``search.prune_repeats`` and GiGPO; ``None`` if there is none. Equal
        keys promise that the same actions lead to the same results, but for limits of steps."""
        return None

    def demonstrator(self, noise: float) -> Demonstrator | None:
        """Return a scripted player that errs at each decision with probability ``noise`` in [0, 1], or ``None``."""
        return None

    def close(self) -> None:
        """Free the processes, files and connections that the environment holds."""
        return None


class EnvWrapper(Env):
    """An environment around another one, as Gymnasium's Wrapper: everything is forwarded to ``env``, and a subclass
    changes what it needs to. It takes the environment, then its options as a class of environments does."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.snapshot_kind, self.stochastic = env.snapshot_kind, env.stochastic
        self.only_success_ends = env.only_success_ends

    def __getattr__(self, name: str) -> Any:
        """What an environment has beyond the contract, such as a method for a reward function."""
        if name == "env" or name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.env, name)

    def refusal(self, action: str | ToolCall) -> str | None:
        """The observation with which this wrapper refuses an action in any state; None if it may be taken. A world
        model asks this, so that imagined steps are refused like real ones."""
        return self.env.refusal(action) if isinstance(self.env, EnvWrapper) else None

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str | ToolCall) -> StepResult:
        return self.env.step(action)

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return self.env.tasks(split, count, start)

    def tools(self) -> Sequence[ToolSpec]:
        return self.env.tools()

    def legal_actions(self) -> list[str] | None:
        return self.env.legal_actions()

    def verify(self) -> float | None:
        return self.env.verify()

    def snapshot(self) -> object:
        return self.env.snapshot()

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        self.env.restore(snapshot, reseed=reseed)

    def state_key(self) -> str | None:
        return self.env.state_key()

    def demonstrator(self, noise: float) -> Demonstrator | None:
        return self.env.demonstrator(noise)

    def close(self) -> None:
        self.env.close()


def task_to_play(env: Env, seed: int | None, options: Mapping[str, object] | None) -> Task:
    """Return the task that ``reset`` must start: ``options["task"]``, or by default training task number ``seed``."""
    task = (options or {}).get("task")
    if task is None:
        task = env.tasks("train", 1, start=seed or 0)[0]
    if not isinstance(task, Task):
        raise UserError(f"options['task'] is a {type(task).__name__}: give a Task of {type(env).__name__}.tasks")
    return task


def opening(task: Task, observation: str) -> str:
    """The first message to the agent: the first observation, after the task's prompt unless it contains it."""
    return observation if task.prompt in observation else f"{task.prompt}\n{observation}"


def probability(noise: float) -> float:
    """Check a demonstrator's rate of errors, and return it."""
    if not 0.0 <= noise <= 1.0:
        raise UserError(f"noise is {noise}: give a probability between 0 and 1")
    return noise


def task_data(task: Task, form: TypeAdapter[Data], kind: str, env: str) -> Data:
    """Return ``task.data`` as ``form``, which the tasks of the environment ``env`` hold."""
    try:
        return form.validate_python(dict(task.data))
    except ValidationError as error:
        first = error.errors()[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise UserError(f"task {task.id!r} holds no {kind} ({why}): take tasks from {env}.tasks") from error


class EnvBroken(RuntimeError):
    """The environment returned a value that the contract does not allow."""

"""What an environment is: Gymnasium's signature with text or tool actions, optional capabilities, and forks."""

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from treeagent.types import Split, Task, ToolCall

SnapshotKind = Literal["exact", "replay", "none"]
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

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        """Start the episode of ``options["task"]``, a ``Task``. Returns (observation, info)."""
        ...

    def step(self, action: str | ToolCall) -> StepResult:
        """(observation, reward, terminated, truncated, info).

        A call that cannot be made is an observation with the reason in ``info["tool_error"]``, never an exception.
        """
        ...

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        """Tasks ``start`` to ``start + count`` of a split: always the same ones; splits are disjoint.

        Raises:
            ValueError: the split holds fewer.
        """
        ...

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


class ReplayDivergence(RuntimeError):
    """The same actions after the same reset led to another observation: the environment cannot be replayed."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in an episode of a ``Forkable``."""

    task: Task
    actions: tuple[str | ToolCall, ...] = ()
    hashes: tuple[str, ...] = ()
    """Hash of the reset's observation, then one per action."""
    terminated: bool = False
    snapshot: object = field(default=None, compare=False, repr=False)


def _hash(observation: str) -> str:
    return hashlib.blake2b(observation.encode(), digest_size=8).hexdigest()


class Forkable:
    """Gives any environment ``mark`` and ``goto``: exact snapshots, else a reset and a checked replay.

    A copied random state would leak the future into a search, so ``goto`` reseeds a stochastic environment afresh. A
    stochastic environment without exact snapshots is replayed from its task's seed, which repeats its luck.
    """

    def __init__(self, env: Env, *, seed: int = 0) -> None:
        self.env = env
        self.replayed_steps = 0
        """Environment steps paid so far for going back by replay."""
        self._rng = random.Random(seed)
        self._here: Mark | None = None

    def reset(self, task: Task) -> tuple[str, dict[str, object]]:
        """Start ``task`` under its own seed."""
        observation, info = self.env.reset(seed=task.seed, options={"task": task})
        self._here = Mark(task, hashes=(_hash(observation),))
        return observation, info

    def step(self, action: str | ToolCall) -> StepResult:
        """One step of the environment from the current place."""
        here = self._place()
        result = self.env.step(action)
        self._here = Mark(here.task, (*here.actions, action), (*here.hashes, _hash(result[0])), result[2])
        return result

    def mark(self) -> Mark:
        """The current place, to come back to with ``goto``."""
        here = self._place()
        if self.env.snapshot_kind != "exact":
            return here
        return Mark(here.task, here.actions, here.hashes, here.terminated, self.env.snapshot())

    def goto(self, mark: Mark, *, reseed: int | None = None) -> None:
        """Stand at ``mark`` again.

        Args:
            reseed: seed of a stochastic environment's luck from here on; ``None`` draws a fresh one.

        Raises:
            ReplayDivergence: a replayed observation differs from the one first seen.
            ValueError: the environment has neither snapshots nor replay.
        """
        if self.env.snapshot_kind == "exact":
            if reseed is None and self.env.stochastic:
                reseed = self._rng.getrandbits(31)
            self.env.restore(mark.snapshot, reseed=reseed)
            self._here = mark
            return
        if mark == self._here:
            return
        if self.env.snapshot_kind == "none" and mark.actions:
            raise ValueError(
                f"{type(self.env).__name__} has snapshot_kind 'none' and cannot go back: search it with a world model"
            )
        observation, _ = self.reset(mark.task)
        self._compare(mark, 0, observation)
        for number, action in enumerate(mark.actions, start=1):
            self.replayed_steps += 1
            observation, *_ = self.step(action)
            self._compare(mark, number, observation)

    def _place(self) -> Mark:
        if self._here is None:
            raise ValueError("no episode has begun: call reset(task) first")
        return self._here

    def _compare(self, mark: Mark, step: int, observation: str) -> None:
        if _hash(observation) != mark.hashes[step]:
            self._here = None
            action = f" (action {mark.actions[step - 1]!r})" if step else " (reset)"
            raise ReplayDivergence(
                f"replay of task {mark.task.id!r} diverged at step {step}{action}: it now reads {observation!r}"
            )
